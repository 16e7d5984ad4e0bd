// The field: every system by family with the evidence for it, and one system's page with its algorithm.
import { h, fill, num, link, go, once, select, empty } from "./dom.js";
import { get } from "./source.js";
import { lines } from "./charts.js";

const LEVELS = [["derived", "derived by hand"], ["learns", "learns in a test"], ["table", "on a lookup table"], ["pocket", "on the embedded model"], ["real", "on a published model"]];
const FAMILIES = { "agents-multiturn": "Agents and turns", "reward-shaping-safety": "Reward shaping and safety", "curriculum-data": "Curricula and data", "study-benchmark-survey": "Studies and benchmarks", "reward-model": "Reward models" };
const called = (family) => { const text = FAMILIES[family] || (family || "other").replaceAll("-", " "); return text[0].toUpperCase() + text.slice(1); };
const CLAIMS = [["shown", "a claim that was shown"], ["not shown", "a claim that was not shown"]];
const has = (e, asked) => (CLAIMS.some(([k]) => k === asked) ? LEVELS.some(([level]) => word(e, level) === asked) : Boolean(word(e, asked)));
const word = (e, level) => (typeof e[level] === "boolean" ? (e[level] ? "yes" : null) : e[level] ? e[level].verdict : null);

function marks(e) {
  return h("ul", { class: "evidence" }, LEVELS.map(([level]) => {
    const found = word(e, level);
    return found ? h("li", { class: found === "not shown" ? "not" : "yes" }, level, found === "yes" || found === "measured" ? "" : `: ${found}`, e[level]?.attempt > 1 ? ` (attempt ${e[level].attempt})` : "") : null;
  }));
}

export async function fieldView(main, params) {
  const { systems } = await get("systems");
  const place = h("div"), count = h("p", { class: "quiet", role: "status" }), wanted = { ...params };
  const search = h("input", { type: "search", id: "search", "aria-label": "Search systems", placeholder: "Search systems, papers, ideas  ( / )", value: wanted.q || "", oninput: once(120, () => { wanted.q = search.value; go("field", wanted, true); show(); }) });
  function show() {
    const words = (wanted.q || "").toLowerCase().split(/\s+/).filter(Boolean);
    const found = systems.filter((s) => words.every((w) => `${s.name} ${s.title} ${s.paper} ${s.paper_title} ${s.idea} ${s.family}`.toLowerCase().includes(w)) && (!wanted.level || has(s.evidence, wanted.level)));
    const families = [...new Set(found.map((s) => s.family || "other"))].sort((a, b) => found.filter((s) => s.family === b).length - found.filter((s) => s.family === a).length);
    fill(count, `${found.length} of ${systems.length} systems in ${families.length} families`);
    const to = (f) => { const head = place.querySelector(`[data-family="${CSS.escape(f)}"] h2`); head.scrollIntoView({ block: "start" }); head.focus({ preventScroll: true }); };
    fill(place, families.length > 1 ? h("ul", { class: "families", "aria-label": "Families" }, families.map((f) => h("li", {}, h("button", { type: "button", onclick: () => to(f) }, called(f), h("span", { class: "quiet" }, ` ${found.filter((s) => (s.family || "other") === f).length}`))))) : null,
      found.length ? null : empty("No system matches", "Take a word out of the search, or choose any evidence."), families.map((f) => h("section", { class: "family", "data-family": f }, h("h2", { tabindex: "-1" }, called(f), h("span", { class: "quiet" }, ` ${found.filter((s) => (s.family || "other") === f).length}`)),
      h("ul", { class: "systems" }, found.filter((s) => (s.family || "other") === f).map((s) => h("li", {}, h("a", { href: link("system", { name: s.name }) }, s.title), h("p", {}, s.idea.replace(/^[^:]{1,60}: /, "").replace(/^[a-z](?=[a-z]* )/, (c) => c.toUpperCase())), marks(s.evidence)))))));
  }
  fill(main, h("div", { class: "head" }, h("h1", {}, "The field"), count), h("p", { class: "lead" }, "Every method and plan that posttrain runs, with what stands behind it: formulas derived by hand in tests, and each paper's claim as an experiment, shown or not."),
    h("form", { class: "filters", onsubmit: (e) => e.preventDefault(), "aria-label": "Filter systems" }, h("div", { class: "field grow" }, search), select("evidence", [["", "any"], ...[...LEVELS, ...CLAIMS].map(([k, told]) => [k, `${told} (${systems.filter((s) => has(s.evidence, k)).length})`])], wanted.level || "", (v) => { wanted.level = v; go("field", wanted, true); show(); })), place);
  show();
}

export async function systemView(main, params) {
  const s = await get("system", { name: params.name });
  const arxiv = /^arXiv:(\d{4}\.\d{4,5})/.exec(s.paper || "");
  fill(main, h("div", { class: "head" }, h("div", {}, h("h1", {}, s.title), h("p", { class: "facts" }, s.family ? h("span", {}, called(s.family)) : null, s.paper ? h("span", {}, s.paper_title ? `${s.paper_title}, ` : "", arxiv ? h("a", { href: `https://arxiv.org/abs/${arxiv[1]}`, rel: "noreferrer noopener" }, s.paper) : s.paper) : null), marks(s.evidence))),
    h("pre", { class: "command" }, h("code", {}, `posttrain run ${s.name}`)),
    h("section", { class: "doc" }, prose(s.doc)),
    s.outline?.length ? h("section", {}, h("h2", {}, "Phases"), h("pre", {}, s.outline.join("\n"))) : null,
    h("section", {}, h("h2", {}, "Its parts"), h("div", { class: "formulas" }, s.parts.map((p) => h("article", { class: "formula" }, h("h3", {}, h("span", { class: "quiet" }, p.field), " ", p.as), h("pre", { tabindex: "0" }, p.doc), h("p", { class: "quiet" }, p.file, p.derived.length ? ` · derived in ${p.derived[0]}` : ""))))),
    s.claim ? claim(s.claim) : null,
    s.curves ? h("section", { "aria-label": "Curves" }, h("h2", {}, `Its curves, attempt ${s.curves.attempt}`), h("p", { class: "quiet" }, "By arm: the mean of all seeds over a band from the least to the most, of the last phase."),
      h("div", { class: "charts" }, Object.entries(s.curves.metrics).map(([metric, arms]) => lines({ title: metric, lines: arms.map((a) => ({ ...a, label: `${a.label} (${a.seeds})` })), sync: "claim", whole: true })))) : null,
    s.real ? h("section", {}, h("h2", {}, `On ${s.real.model}`), h("p", {}, s.real.found), h("p", { class: "quiet" }, `${s.real.date} · ${s.real.hardware}`)) : null);
}

// paragraphs whose lines were broken for a terminal; what is indented stays as it is
function prose(text) {
  return text.trim().split(/\n\s*\n/).map((part) => (/^\s{2,}/m.test(part) ? h("pre", {}, part) : h("p", {}, part.replaceAll("\n", " ").split(/`([^`]+)`/).map((some, i) => (i % 2 ? h("code", { class: some.length < 40 ? "whole" : null }, some) : some)))));
}

function claim(c) {
  return h("section", {}, h("h2", {}, "Its claim"), h("div", { class: "doc" }, prose(c.says)), h("details", { class: "fold" }, h("summary", {}, "The experiment"), prose(c.experiment)),
    c.attempts.length ? [...c.attempts].reverse().map((a, i) => h("details", { class: "fold", open: i === 0 }, h("summary", {}, `attempt ${a.attempt}: `, h("b", {}, a.verdict), ` · ${a.level} · ${a.seeds} seeds · ${a.date}`), h("p", { class: "quiet" }, "Each difference with its interval; the dashed line is what it had to exceed."), h("ul", { class: "checks" }, a.checks.map(check)))) : h("p", { class: "quiet" }, "It has not been run."));
}

function check(k) {
  const ends = [k.low, k.high, k.margin ?? 0, 0].filter((v) => Number.isFinite(v)), low = Math.min(...ends), span = Math.max(...ends) - low || 1;
  const at = (v) => 4 + (192 * (v - low)) / span;
  const drawn = Number.isFinite(k.low) && Number.isFinite(k.high);
  return h("li", {}, h("span", { class: `tag ${k.shown ? "good" : ""}` }, k.shown ? "shown" : "not shown"), h("span", {}, k.name), drawn ? h("svg", { viewBox: "0 0 200 20", class: "interval", role: "img", "aria-label": `${num(k.difference)}, ${num(k.low)} to ${num(k.high)}; more than ${num(k.margin ?? 0)} was to be shown` },
    h("svg:line", { x1: at(k.margin ?? 0), x2: at(k.margin ?? 0), y1: 2, y2: 18, class: "margin" }), h("svg:line", { x1: at(k.low), x2: at(k.high), y1: 10, y2: 10, class: "range" }), h("svg:circle", { cx: at(k.difference), cy: 10, r: 4 })) : null,
    h("span", { class: "quiet" }, drawn ? `${num(k.difference)} (${num(k.low)} to ${num(k.high)})` : num(k.difference)));
}
