// One run: what is wrong, how it goes, what it wrote.
import { h, fill, num, signed, duration, ago, score, link, go, select, state, rewardParts, count, ending, lengthy, append, settle } from "./dom.js";
import { get, follow, isReport } from "./source.js";
import { lines, stacked } from "./charts.js";
import { picture } from "./turns.js";

export const GROUPS = [
  ["reward", ["reward"], {}],
  ["reward components", (n) => /^reward\/[^/]+$/.test(n) && n !== "reward/masked" && n !== "reward/seconds", {}],
  ["tokens per answer", ["length", "length_max"], { zero: true }],
  ["share of answers cut off", ["truncated"], { zero: true }],
  ["answers that could not be scored", ["failed"], { zero: true }],
  ["entropy, nats per token", ["entropy"], { zero: true }],
  ["KL to the reference", ["kl"], { zero: true }],
  ["KL of the step's updates", ["approx_kl"], { zero: true }],
  ["share of tokens clipped", ["clip_fraction"], { zero: true }],
  ["gradient norm", ["grad_norm"], { zero: true }],
  ["loss", ["loss"], {}],
  ["implicit reward of chosen and rejected", ["rewards/chosen", "rewards/rejected"], {}],
  ["share of pairs in the right order", ["rewards/accuracies"], { zero: true }],
  ["log-probability of chosen and rejected", ["logps/chosen", "logps/rejected"], {}],
  ["the critic's squared error", ["value_error"], { zero: true }],
  ["gap of sampler and trainer", ["logp_gap"], { zero: true }],
  ["groups that teach nothing", ["frac_reward_zero_std"], { zero: true }],
  ["spread of reward in a group", ["reward_std"], { zero: true }],
  ["learning rate", ["lr"], { zero: true }],
  ["tokens per second", ["tokens_per_second"], { zero: true }],
];
const GIVEN = ["reward", "frac_reward_zero_std", "reward_std"]; // of answers that nobody sampled these are those of the data
const FIRST = ["loss", "implicit reward of chosen and rejected", "share of pairs in the right order"]; // of what such a run is about
const TINTS = { sampling: 1, grading: 5, training: 2, evaluation: 3, storing: 6 }; // a stage has its colour in every run
const STAGES = ["sampling/seconds", "grading/seconds", "training/seconds", "evaluation/seconds", "storing/seconds"];
export const UNITS = { answers: "answers", tokens: "tokens", seconds: "seconds" };
const AXES = [["step", "steps"], ["answers", "answers"], ["tokens", "tokens"], ["seconds", "seconds"]];

export const pick = (rule, names) => (Array.isArray(rule) ? rule.filter((n) => names.includes(n)) : names.filter(rule));
export const onAxis = (curve) => curve.x || curve.step;

export function controls(params, view) {
  const set = (key, value) => go(view, { ...params, [key]: value });
  return h("div", { class: "filters", role: "group", "aria-label": "How curves are drawn" },
    select("x axis", AXES, params.x || "step", (v) => set("x", v === "step" ? "" : v)),
    select("smoothing", [["", "none"], ["2", "a little"], ["6", "some"], ["15", "much"]], params.smooth || "", (v) => set("smooth", v)));
}

export async function runView(main, params, keep) {
  const x = params.x || "step", onX = x === "step" ? undefined : x;
  const [about, found] = await Promise.all([get("run", { run: params.run }), get("metrics", { run: params.run, x: onX })]);
  const name = about.run.name, head = h("div", { class: "head" }), notice = h("div", { role: "alert" }), warnings = h("section", { "aria-label": "Warnings" }), charts = h("div", { class: "charts" }), zero = h("p", { class: "quiet zero" }), marked = h("p", { class: "marked quiet" }), parts = h("section", { "aria-label": "Phases" });
  const wrote = h("div"), others = h("div"), events = h("div"), kept = h("p", { class: "about-sheets quiet" });
  const figures = new Map(); // title -> its chart, which stays while the run goes on
  let shown = null, stored = "";

  function curves() {
    const wanted = plots(about, found, { ...params, x });
    for (const [title, spec] of wanted) { if (figures.has(title)) figures.get(title).update(spec); else figures.set(title, lines(spec)); }
    const titles = wanted.map(([title]) => title).join("\n"), flat = wanted.nothing || [];
    if (titles !== shown) settle(charts, wanted.length ? wanted.map(([title]) => figures.get(title)) : [h("p", { class: "quiet" }, "No step is done yet; curves appear with the first.")]); // whoever walks a curve stays on it
    fill(zero, flat.length ? `0 at every step: ${flat.join(", ")}.` : null);
    shown = titles;
  }

  function rest() { // what is not a curve, where it has changed and nobody is in it
    told(warnings, about, params);
    phasesOf(parts, about);
    legend(marked, about, () => { const list = events.querySelector("details"); if (list) { list.open = true; list.scrollIntoView({ block: "start" }); list.querySelector("summary").focus(); } });
    const now = JSON.stringify(about.stored);
    if (now !== stored && !wrote.contains(document.activeElement)) { stored = now; samples(about).then((some) => fill(wrote, some)); } // the curves do not wait for it
    refold(others, () => otherMetrics(about, found, { ...params, x }), about.metrics.length);
    refold(events, () => eventList(about), about.events.length);
  }

  heading(head, about);
  curves();
  rest();
  if (!isReport) get("sheets").then(({ sheets }) => { // of the same task: an audit of its reward, figures of its data
    const mine = sheets.filter((s) => s.task === about.run.task);
    if (mine.length) fill(kept, "Sheets of this task: ", mine.slice(0, 6).map((s, i) => [i ? " · " : "", h("a", { href: link("sheets", { name: s.name }) }, `${s.kind === "audit" ? "audit of " : "data "}${s.title}`), s.wrong.length ? ` (${count(s.wrong.length, "finding")})` : ""]));
  }).catch(() => {});
  fill(main, head, notice, warnings, kept, parts, h("section", { "aria-label": "Curves" }, h("h2", { class: "sr" }, "Curves"), h("div", { class: "above" }, controls(params, "run"), marked), charts, zero), wrote, others, events, settings(about));
  if (isReport) return;
  let busy = false, late = Date.now(), newest = null, all = false;
  const news = async (now, again) => {
    newest = now;
    all = all || again || now.anew || now.gone;
    fill(notice, now.gone ? h("p", { class: "bad" }, "The folder of this run is gone: deleted or moved. What is shown was read before.") : null);
    if (busy || now.gone) return; // what comes meanwhile is shown afterwards
    busy = true;
    try {
      if (all || now.steps !== found.steps) {
        const since = all || now.steps < found.steps ? 0 : Math.max(0, found.steps - 1), more = await get("metrics", { run: name, x: onX, after: since || undefined });
        if (since) merge(found, more); else Object.assign(found, more);
      }
      const other = Object.keys(found.curves).some((n) => !about.metrics.includes(n));
      if (all || other || Date.now() - late > 8000 || now.running !== (about.run.state === "running")) {
        late = Date.now();
        Object.assign(about, await get("run", { run: name }));
        rest();
      } else if (about.run.steps) about.run.step = now.steps;
      all = false;
      curves();
      heading(head, about);
      await new Promise((r) => setTimeout(r, 900));
    } catch { all = true; /* the stream tells that the server is gone */ } finally { busy = false; }
    if (newest !== now && head.isConnected) news(newest);
  };
  keep.close(follow(name, news));
}

// between the last step of a phase and the first of the next
const edgesOf = (about, found) => [...new Set(about.phases.map((p) => p.start))].filter((n) => n > 0).map((n) => (found.axis === "step" ? n + 0.5 : toAxis(found)(n)));

// every chart of a run: [title, what it draws]
function plots(about, found, params) {
  const axis = toAxis(found), edges = edgesOf(about, found), made = [];
  const shared = sharedBy(about, params, axis, edges), nothing = [], given = about.stored.length > 0 && about.stored.every((s) => s.written);
  if (about.held_out) made.push([`held-out ${about.held_out.name === "accuracy" ? "accuracy" : "reward"}`, { lines: [], percent: about.held_out.name === "accuracy", points: [{ label: `${about.held_out.problems} problems, 95%`, all: about.held_out.points.map((p) => ({ ...p, x: axis(p.step) })) }] }]);
  const first = given ? GROUPS.filter(([title]) => FIRST.includes(title)) : [];
  for (const [title, rule, more] of [...first, ...GROUPS.filter((g) => !first.includes(g))]) {
    const names = pick(rule, about.metrics).filter((n) => found.curves[n] && !(given && GIVEN.includes(n)));
    if (!names.length) continue;
    if (title !== "reward" && names.every((n) => still(found.curves[n]))) { nothing.push(title); continue; }
    made.push([title, { lines: names.map((n) => broken({ ...found.curves[n], label: n.replace(/^reward\/(?=.)/, "") }, edges)), ...more }]);
  }
  const stages = STAGES.filter((n) => about.metrics.includes(n) && found.curves[n]);
  if (stages.length) made.splice(about.held_out ? 2 : 1, 0, ["seconds by stage", { stacked: true, lines: stacked(aligned(stages, found)) }]);
  return Object.assign(made.map(([title, spec]) => [title, { title, ...spec, ...shared }]), { nothing });
}

// a curve that has never left 0 is told in a line
export const still = (curve) => curve.mean.length > 1 && [curve.mean, curve.low || [], curve.high || []].every((some) => some.every((v) => v === 0));

// the marks under the curves, by kind
function legend(place, about, open) {
  const kinds = new Map();
  for (const e of about.events) kinds.set(e.kind, (kinds.get(e.kind) || 0) + 1);
  fill(place, kinds.size ? [[...kinds].slice(0, 6).map(([kind, n]) => [h("span", { class: `mark-key ${kind === "checkpoint" ? "kept" : ""}`, "aria-hidden": "true" }, "▲"), h("span", {}, n > 1 ? `${kind} ×${n}` : kind)]), h("button", { type: "button", class: "rest", onclick: open }, "list")] : []);
}

function sharedBy(about, params, axis, edges) {
  return { smoothing: Number(params.smooth || 0), sync: "run", unit: UNITS[params.x] || "step", edges, whole: params.x !== "seconds", marks: about.events.map((e) => ({ ...e, x: axis(e.x) })),
    stretches: params.warning ? about.warnings.filter((w) => w.name === params.warning).map((w) => w.x.map(axis)) : [], onpick: params.x === "step" ? (at) => openStep(about, at) : null };
}

// made again where there is more in it, open if it was
function refold(place, make, size) {
  if (place.dataset.size === String(size) || place.contains(document.activeElement)) return;
  const open = place.querySelector("details")?.open;
  place.dataset.size = size;
  fill(place, make());
  if (open && place.firstChild) place.firstChild.open = true;
}

// a phase is another beginning: no line leads into it
function broken(curve, edges) {
  const kept = ["mean", "low", "high"].filter((key) => curve[key]);
  const out = { label: curve.label, x: [...onAxis(curve)], ...Object.fromEntries(kept.map((key) => [key, [...curve[key]]])) };
  for (const edge of edges) {
    const i = out.x.findIndex((v) => v > edge);
    if (i < 1) continue;
    out.x.splice(i, 0, (out.x[i - 1] + out.x[i]) / 2);
    for (const key of kept) out[key].splice(i, 0, null);
  }
  return out;
}

export function toAxis(found) {
  if (found.axis === "step") return (step) => step;
  const curve = Object.values(found.curves).find((c) => c.step.length === Math.max(...Object.values(found.curves).map((o) => o.step.length)));
  return (step) => { if (!step || !curve) return 0; const i = curve.step.findIndex((s) => s >= step); return i < 0 ? curve.x.at(-1) : curve.x[i]; };
}

function merge(found, next) {
  if (next.width !== found.width || next.from === 0 || next.steps < found.steps) return Object.assign(found, next);
  for (const [name, more] of Object.entries(next.curves)) {
    const old = found.curves[name];
    if (!old) { found.curves[name] = more; continue; }
    const keep = old.step.filter((s) => s <= next.from).length;
    for (const key of Object.keys(more)) old[key] = [...old[key].slice(0, keep), ...more[key]];
  }
  found.steps = next.steps;
}

function aligned(stages, found) {
  const steps = found.curves[stages[0]].step, xs = onAxis(found.curves[stages[0]]);
  return stages.map((n) => {
    const at = new Map(found.curves[n].step.map((s, i) => [s, found.curves[n].mean[i]]));
    return { label: n.replace("/seconds", ""), tint: TINTS[n.replace("/seconds", "")], step: steps, x: xs, mean: steps.map((s) => at.get(s) ?? 0) };
  });
}

const done = ({ run, phases }) => (run.steps ? run.step : phases.reduce((n, p) => n + p.steps, 0));

function heading(head, about) {
  const { run } = about, left = run.state === "running" && run.step && run.steps ? ((run.steps - run.step) * run.seconds) / run.step : 0;
  const share = run.steps ? Math.min(1, run.step / run.steps) : run.state === "finished" ? 1 : 0;
  fill(head, h("div", {}, h("h1", {}, run.name), h("p", { class: "facts" }, state(run), h("span", {}, h("b", {}, run.method), " on ", h("b", {}, run.task), " with ", h("b", {}, run.model)),
    h("span", {}, `seed ${run.seed}`), h("span", {}, ago(run.started)), h("span", {}, duration(run.seconds)), left > 1 ? h("span", {}, `about ${duration(left)} left`) : null, run.why && run.state !== "finished" ? h("span", { class: "bad" }, run.why) : null)),
    h("div", { class: "tiles" },
      tile("steps", run.steps ? `${done(about)} / ${run.steps}` : `${done(about)}`, h("span", { class: "meter", css: { "--share": share } }, h("i", {}))),
      run.before !== null ? tile(`held-out ${run.score.replaceAll("_", " ")}`, [score(run, run.before), " → ", run.after === null ? "…" : score(run, run.after)]) : null,
      about.stored.length ? h("a", { class: "tile", href: link("rollouts", { run: run.name, phase: about.stored.at(-1).phase, order: "newest" }) }, h("span", {}, "answers"), h("b", {}, "browse →")) : null));
}

function tile(label, value, more) {
  return h("div", { class: "tile" }, h("span", {}, label), h("b", {}, value), more);
}

// what a plan has done so far, phase by phase
function phasesOf(place, about) {
  if (about.phases.length < 2) return fill(place);
  const now = about.run.state === "running" ? about.run.phase : "", stored = new Set(about.stored.map((s) => s.phase));
  fill(place, h("h2", { class: "sr" }, "Phases"), h("ol", { class: "phases" }, about.phases.map((p) => h("li", { "aria-current": p.name === now ? "step" : null },
    h("b", {}, stored.has(p.name) ? h("a", { href: link("rollouts", { run: about.run.name, phase: p.name }) }, p.name) : p.name),
    h("span", {}, p.steps ? (p.steps > 1 ? `steps ${p.start + 1} to ${p.start + p.steps}` : `step ${p.start + 1}`) : p.finished ? "without training" : "no step yet"), p.role !== "policy" ? h("span", {}, `trains the ${p.role.replaceAll("_", " ")}`) : null, h("span", {}, p.name === now ? "now" : p.finished ? "done" : p.steps ? "not finished" : "")))));
}

function told(place, about, params) {
  const unscored = about.unscored.map((u) => h("li", {}, h("i", { "aria-hidden": "true" }, "!"), h("div", {}, h("strong", {}, `${u.failed.toLocaleString("en")} of ${u.made.toLocaleString("en")} answers could not be scored`), h("span", { class: "quiet" }, `, and nothing is learned from them${u.why ? `: ${u.why}` : ""}`)),
    h("span", { class: "links" }, about.stored.length ? h("a", { href: link("rollouts", { run: about.run.name, phase: u.phase, failed: "1" }) }, "answers") : null)));
  if (!about.warnings.length && !unscored.length) return fill(place, done(about) < 10 ? (done(about) ? h("p", { class: "quiet" }, "Monitors compare the first steps with the last: they need ten.") : null) : h("p", { class: "ok" }, h("i", { "aria-hidden": "true" }), "No monitor has found anything: reward against held-out, length, entropy, repetition, components, gap, silent groups, echoes."));
  fill(place, h("h2", { class: "sr" }, "Warnings"), h("ul", { class: "warnings" }, unscored, about.warnings.map((w) => h("li", {},
    h("i", { "aria-hidden": "true" }, "!"), h("div", {}, h("strong", {}, w.says), h("span", { class: "quiet" }, ` ${about.phases.length > 1 ? `${w.phase}, ` : ""}steps ${w.first} to ${w.last}`)),
    h("span", { class: "links" }, h("a", { href: link("run", { ...params, warning: params.warning === w.name ? "" : w.name }) }, params.warning === w.name ? "hide in curves" : "in curves"),
      about.stored.length ? h("a", { href: link("rollouts", { run: about.run.name, phase: w.phase, first: w.first, last: w.last, ...w.filter }) }, "answers") : null)))));
}

function openStep(about, at) {
  const phase = [...about.phases].reverse().find((p) => at > p.start);
  const kept = phase && about.stored.find((s) => s.phase === phase.name);
  if (kept) go("rollouts", { run: about.run.name, phase: phase.name, first: at - phase.start, last: at - phase.start });
}

async function samples(about) {
  const kept = about.stored.at(-1);
  if (!kept) return h("section", {}, h("h2", {}, "Answers"), h("p", { class: "quiet" }, about.settings.log_rollouts === 0 ? "None are stored: this run has --log-rollouts 0." : "None yet."));
  const ask = (first) => get("rollouts", { run: about.run.name, phase: kept.phase, first, last: first, limit: 100 }).then(({ rows }) => rows.filter((r, i) => i === 0 || r.group_index !== rows[i - 1].group_index).sort((a, b) => b.stored - a.stored).slice(0, 3)).catch(() => []);
  const [before, after] = await Promise.all([ask(kept.first), ask(kept.last)]);
  const of = about.stored.length > 1 ? `${kept.phase}, step` : "at step";
  const column = (title, rows, step) => h("div", {}, h("h3", {}, h("a", { href: link("rollouts", { run: about.run.name, phase: kept.phase, first: step, last: step }) }, title)), rows.map((r) => answerCard(about.run.name, kept.written ? { ...r, adv: null } : r)));
  return h("section", { "aria-label": "Answers" }, h("h2", {}, kept.written ? "What it learned from" : "What it wrote"), h("div", { class: "two" }, column(`${of} ${kept.first}`, before, kept.first), kept.last > kept.first ? column(`${of} ${kept.last}`, after, kept.last) : null));
}

export function answerCard(run, row, weights) {
  const key = { run, phase: row.phase, step: row.step, group: row.group_index, sample: row.sample_index };
  return h("article", { class: "answer", tabindex: "-1", "data-open": link("tokens", key), "data-group": link("group", key) },
    h("header", {}, h("span", { class: `reward ${row.failed ? "bad" : ""}` }, row.failed ? "not scored" : num(row.total)), row.adv !== null ? h("span", { class: "quiet" }, `advantage ${signed(row.adv)}`) : null,
      h("span", { class: "quiet" }, `${count(row.length, row.picture ? "action" : "token")}${row.said ? ` in ${row.said.length} turns` : ""}`), row.role !== "policy" ? h("a", { class: "tag", href: link("rollouts", { run, phase: row.phase, role: row.role }), title: "answers of this role" }, row.role) : null, ending(row.stop) ? h("span", { class: "tag" }, ending(row.stop)) : null,
      h("span", { class: "quiet place" }, `step ${row.step} · prompt ${row.group_index + 1} · answer ${row.sample_index + 1}`)),
    row.stored ? [h("p", { class: "prompt" }, row.prompt || ""), said(row)] : h("p", { class: "quiet" }, "its text is not kept"),
    rewardParts(row, weights),
    row.stored ? h("footer", {}, h("a", { href: link("tokens", key) }, row.picture ? "steps" : "tokens"), h("a", { href: link("group", key) }, "its group"), h("a", { href: link("rollouts", { run, phase: row.phase, prompt: row.prompt_id }) }, "this prompt over time")) : null);
}

export function said(row) {
  if (row.picture) return picture(row.picture, "what it drew", { size: 80 });
  if (row.said) return h("ol", { class: "said-turns" }, row.said.slice(0, 8).map((text) => h("li", { class: "text" }, text || h("span", { class: "quiet" }, "(nothing)"))), row.said.length > 8 ? h("li", { class: "quiet" }, `… ${row.said.length - 8} more turns`) : null);
  const text = row.text ? lengthy(row.text) : h("p", { class: "text" }, h("span", { class: "quiet" }, "(nothing)"));
  return row.cut ? append(text, [h("span", { class: "quiet" }, " …")]) : text;
}

function otherMetrics(about, found, params) {
  const used = new Set([...GROUPS.flatMap(([, rule]) => pick(rule, about.metrics)).filter((n) => !GIVEN.includes(n) || !about.stored.every((s) => s.written)), ...STAGES, "seconds", "accuracy", "held_out_reward"]);
  const names = about.metrics.filter((n) => !used.has(n) && found.curves[n]), axis = toAxis(found);
  if (!names.length) return null;
  const place = h("div", { class: "charts" });
  return h("details", { class: "fold", ontoggle: (e) => { if (e.target.open && !place.children.length) fill(place, names.map((n) => lines({ title: n, lines: [{ label: n, ...found.curves[n], x: onAxis(found.curves[n]) }], ...sharedBy(about, params, axis, edgesOf(about, found)) }))); } },
    h("summary", {}, `Other metrics (${names.length})`), place);
}

function eventList(about) {
  if (!about.events.length) return null;
  return h("details", { class: "fold" }, h("summary", {}, `Events (${about.events.length})`), h("table", { class: "list" }, h("thead", {}, h("tr", {}, ["step", "what", "told"].map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", {}, about.events.map((e) => h("tr", {}, h("td", { class: "n" }, about.phases.length > 1 ? `${e.phase} ${e.step}` : e.step), h("td", {}, e.kind), h("td", {}, e.message))))));
}

function settings(about) {
  const rows = Object.entries(about.settings).filter(([, v]) => v !== null && v !== "");
  const notes = { ...about.summary, ...about.notes };
  return [h("details", { class: "fold" }, h("summary", {}, `Settings (${rows.length})`), h("table", { class: "list settings" }, h("tbody", {}, rows.map(([k, v]) => h("tr", {}, h("th", { scope: "row" }, k), h("td", {}, String(v))))))),
    Object.keys(notes).length ? h("details", { class: "fold" }, h("summary", {}, "Summary"), h("table", { class: "list settings" }, h("tbody", {}, Object.entries(notes).map(([k, v]) => h("tr", {}, h("th", { scope: "row" }, k), h("td", {}, typeof v === "number" ? num(v, 5) : v)))))) : null];
}
