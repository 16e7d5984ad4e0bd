// One answer down to the token: coloured by what is known of each, numbers on hover and focus, turns folded, what was observed told apart.
import { h, fill, num, signed, plain, link, go, select, stepper, rewardParts, append, count, lengthy } from "./dom.js";
import { get } from "./source.js";
import { turnBlock, creditByTurn, foldAll, picture, rightAnswer } from "./turns.js";

const BINS = {
  logp: { name: "probability", edges: [0.9, 0.5, 0.1, 0.01], of: (t) => Math.exp(t.logp), told: ["≥ 0.9", "≥ 0.5", "≥ 0.1", "≥ 0.01", "less"] },
  entropy: { name: "entropy", edges: [0.1, 0.5, 1, 2], of: (t) => t.entropy, told: ["< 0.1", "< 0.5", "< 1", "< 2", "more"], rising: true },
  adv: { name: "advantage", diverging: true, edges: [-1.5, -0.5, -0.1, 0.1, 0.5, 1.5], of: (t) => t.adv, told: ["< −1.5", "< −0.5", "< −0.1", "0", "> 0.1", "> 0.5", "> 1.5"] },
  ratio: { name: "ratio", diverging: true, edges: [0.8, 0.95, 0.99, 1.01, 1.05, 1.2], of: (t) => t.ratio, told: ["< 0.8", "< 0.95", "< 0.99", "1", "> 1.01", "> 1.05", "> 1.2"] },
  kl: { name: "KL to the reference", edges: [0.001, 0.01, 0.1, 1], of: (t) => t.kl, told: ["< 0.001", "< 0.01", "< 0.1", "< 1", "more"], rising: true },
  value: { name: "value", diverging: true, edges: [-1, -0.5, -0.1, 0.1, 0.5, 1], of: (t) => t.value, told: ["< −1", "< −0.5", "< −0.1", "0", "> 0.1", "> 0.5", "> 1"] },
};
const SURE = Math.log(0.99); // tokens that were as good as certain are not called unlikely
const WINDOW = 4000; // tokens drawn at once

export function bin(kind, token) {
  const rule = BINS[kind], value = token[kind] === null || token[kind] === undefined ? null : rule.of(token);
  if (value === null) return "none";
  if (rule.diverging) return `d${rule.edges.filter((e) => value > e).length}`;
  return `q${rule.edges.filter((e) => (rule.rising ? value >= e : value < e)).length}`;
}

export async function tokensView(main, params, keep) {
  const key = { run: params.run, phase: params.phase, step: params.step, group: params.group, sample: params.sample };
  const found = await get("tokens", key);
  const drawn = found.turns.map((t) => new Map((t.drawn || []).map((p) => [p.at, p])));
  const vector = (id) => Array.isArray(id) || !Number.isInteger(id), told = (id) => (Array.isArray(id) ? `[${id.flat(3).slice(0, 12).map((x) => num(x)).join(", ")}${id.flat(3).length > 12 ? ", …" : ""}]` : num(id));
  const unit = ofActions(found, vector) ? "action" : "token";
  const all = found.turns.flatMap((t, turn) => t.tokens.map((id, i) => ({ id, turn, i, picture: drawn[turn].get(i) || null, piece: drawn[turn].size ? `step ${i + 1}` : vector(id) ? told(id) : found.pieces[id] ?? `#${id}`, logp: t.logp?.[i] ?? null, own: t.mask ? Boolean(t.mask[i]) : true, adv: t.adv?.[i] ?? null, entropy: t.entropy?.[i] ?? null, ratio: t.ratio?.[i] ?? null, kl: t.kl?.[i] ?? null, value: t.value?.[i] ?? null })));
  all.forEach((t, n) => { t.n = n; });
  const kinds = Object.keys(BINS).filter((k) => all.some((t) => t[k] !== null) && !(k === "logp" && unit === "action")); // a density is no probability
  let kind = kinds.includes(params.colour) ? params.colour : kinds[0] || "logp", at = 0, from = 0;
  const body = h("div", { class: "tokens" }), facts = h("div", { class: "token-facts", role: "status", "aria-live": "polite" }), key_ = h("ol", { class: "legend", "aria-label": "Colours" });
  const a = found.answer;

  function paint() {
    for (const span of body.querySelectorAll(".tok")) { const t = all[span.dataset.n]; span.dataset.bin = t.own ? bin(kind, t) : "none"; }
    fill(key_, BINS[kind].told.map((label, i) => h("li", {}, h("span", { class: "swatch", "data-bin": `${BINS[kind].diverging ? "d" : "q"}${i}` }), label)), all.some((t) => !t.own) ? h("li", {}, h("span", { class: "swatch masked" }), "not the policy's own") : null);
  }

  function show(n, focus) {
    const t = all[n];
    if (!t) return;
    if (n < from || n >= from + WINDOW) { from = Math.max(0, Math.min(n - WINDOW / 2, all.length - WINDOW)); draw(); }
    body.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    const span = body.querySelector(`[data-n="${n}"]`);
    span?.setAttribute("tabindex", "0");
    for (const old of body.querySelectorAll(".here")) old.classList.remove("here");
    span?.classList.add("here");
    const folded = span?.closest("details.turn");
    if (focus && folded) folded.open = true;
    if (focus) span?.focus();
    at = n;
    const row = (label, value) => [h("dt", {}, label), h("dd", {}, value)];
    fill(facts, t.picture ? picture(t.picture, `what step ${t.i + 1} drew`, { size: 160 }) : null, h("code", { class: "piece" }, JSON.stringify(plain(t.piece)).slice(1, -1)), h("dl", {}, row(unit, `${n + 1} of ${all.length}`), found.turns.length > 1 ? row("turn", t.turn + 1) : null, unit === "action" ? null : row("id", t.id),
      t.logp !== null ? [unit === "action" ? null : row("p", num(Math.exp(t.logp))), row(unit === "action" ? "log density" : "log p", num(t.logp))] : null, t.adv !== null ? row("advantage", signed(t.adv)) : null, t.entropy !== null ? row("entropy", num(t.entropy)) : null, t.ratio !== null ? row("ratio", num(t.ratio, 4)) : null, t.kl !== null ? row("KL", num(t.kl)) : null, t.value !== null ? row("value", signed(t.value)) : null, t.picture ? row("black, white", `${num(t.picture.low)}, ${num(t.picture.high)}`) : null, row("mask", !t.own ? "observed" : found.written ? "learned from" : "its own")));
  }

  function draw() {
    const some = all.slice(from, from + WINDOW);
    const turns = found.turns.map((turn, k) => {
      const spans = some.filter((t) => t.turn === k).map((t) => h("span", { class: `tok${t.own ? "" : " masked"}${t.picture ? " drawn" : ""}`, tabindex: "-1", "data-n": t.n, "data-break": t.piece.includes("\n") || null, ...(t.picture ? { role: "img", "aria-label": `step ${t.i + 1}` } : {}) }, t.picture ? [picture(t.picture, "", { size: 80 }), h("span", { class: "under" }, t.i + 1)] : t.piece === "" ? "∅" : t.piece.replaceAll("\n", "↵\n")));
      return turnBlock(found, all, k, h("div", { class: "said", role: "group", "aria-label": found.turns.length > 1 ? `turn ${k + 1}` : "answer, token by token" }, spans));
    });
    fill(body, from > 0 ? h("button", { class: "button", type: "button", onclick: () => show(Math.max(0, from - 1), true) }, `the ${from} tokens before`) : null, turns, from + WINDOW < all.length ? h("button", { class: "button", type: "button", onclick: () => show(from + WINDOW, true) }, `the ${all.length - from - WINDOW} tokens after`) : null);
    paint();
  }

  body.addEventListener("mouseover", (e) => { const n = e.target.closest?.(".tok")?.dataset.n; if (n !== undefined) show(Number(n)); });
  body.addEventListener("click", (e) => { const n = e.target.closest?.(".tok")?.dataset.n; if (n !== undefined) show(Number(n), true); });
  body.addEventListener("focusin", (e) => { const n = e.target.closest?.(".tok")?.dataset.n; if (n !== undefined && Number(n) !== at) show(Number(n)); });
  body.addEventListener("keydown", (e) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -1e9, End: 1e9 }[e.key];
    if (by === undefined || !e.target.closest(".tok")) return;
    e.preventDefault();
    show(Math.max(0, Math.min(all.length - 1, at + by)), true);
  });
  const known = all.filter((t) => t.own && t.logp !== null), rare = known.filter((t) => t.logp < SURE).sort((x, y) => x.logp - y.logp).slice(0, 10);
  const turnTo = (by) => go("tokens", { ...key, sample: Math.max(0, Math.min(found.samples - 1, Number(params.sample) + by)), colour: kind });
  fill(main, h("div", { class: "head" }, h("div", {}, h("h1", {}, `Answer ${Number(params.sample) + 1} to prompt ${Number(params.group) + 1}, step ${params.step}`),
    h("p", { class: "facts" }, h("span", {}, "reward ", h("b", {}, a.failed ? "not scored" : num(a.total))), found.written ? h("span", {}, "from the data set; probabilities are the trainer's, before it learned from it") : h("span", {}, `advantage ${signed(a.adv)}`), h("span", {}, `${count(a.length, unit)}${found.turns.length > 1 ? ` in ${found.turns.length} turns` : ""}`), a.role !== "policy" || found.others.length ? h("span", {}, "role ", h("b", {}, a.role)) : null, h("span", {}, a.stop === "length" ? "cut off" : a.stop === "stop" ? "ended by itself" : `ended: ${(a.stop || "").replaceAll("_", " ")}`), found.written ? null : h("span", {}, `weights of version ${a.version}`), a.at !== null && a.at !== undefined ? h("span", {}, a.parent >= 0 ? h("a", { href: link("tokens", { ...key, sample: a.parent }) }, `left answer ${a.parent + 1} after ${a.at} ${unit}s`) : `left another answer after ${a.at} ${unit}s`) : null,
      found.others.map((o) => h("span", {}, h("a", { href: link("tokens", { ...key, sample: o.sample_index }) }, `${o.role} in the same episode`), ` ${o.failed ? "not scored" : num(o.total)}`)), rewardParts(a, found.weights))),
    h("div", { class: "links" }, stepper("answer", `answer ${Number(params.sample) + 1} of ${found.samples}`, turnTo, [Number(params.sample) <= 0, Number(params.sample) >= found.samples - 1]), found.turns.length > 1 || found.others.length ? h("a", { class: "button", href: link("episode", key) }, "whole episode") : null, h("a", { class: "button", href: link("group", key) }, "its group"))),
    h("section", { class: "question", "aria-label": "Prompt" }, lengthy(found.prompt || ""), rightAnswer(found.gold)),
    h("div", { class: "filters" }, kinds.length ? select("colour", kinds.map((k) => [k, BINS[k].name]), kind, (v) => { kind = v; go("tokens", { ...key, colour: v }, true); paint(); }, { id: "colour" }) : h("p", { class: "quiet" }, "nothing is known of its tokens"), key_),
    h("div", { class: "with-side" }, h("section", { "aria-label": "Tokens" }, body), h("aside", { "aria-label": `One ${unit}` }, h("h2", { class: "sr" }, `One ${unit}`), facts, creditByTurn(found, all, body), strip(all, unit), rare.length && unit === "token" ? h("div", {}, h("h3", {}, "Least likely"), h("ol", { class: "rare" }, rare.map((t) => h("li", {}, h("button", { type: "button", onclick: () => show(t.n, true) }, h("code", {}, plain(t.piece).replaceAll("\n", "↵").replaceAll(" ", "␣") || "∅"), h("span", {}, num(Math.exp(t.logp)))))))) : known.length && unit === "token" ? h("p", { class: "quiet" }, "Every token of it was at least 99% sure.") : null)));
  draw();
  show(0);
  keep.colour = (k) => { if (kinds.includes(k)) { kind = k; const s = document.getElementById("colour"); if (s) s.value = k; paint(); } };
  keep.fold = () => foldAll(body);
  keep.sample = turnTo;
}

// whether it is made of something else than token ids: numbers, vectors, pictures
function ofActions(found, vector) {
  return found.turns.some((t) => t.drawn || (t.tokens.length && vector(t.tokens[0])));
}

function strip(all, unit) {
  const own = all.filter((t) => t.logp !== null);
  if (own.length < 2 || unit === "action") return null;
  const most = Math.max(...own.map((t) => -t.logp), 1e-6), step = Math.max(1, Math.ceil(own.length / 240));
  const bars = [];
  for (let i = 0; i < own.length; i += step) bars.push(Math.max(...own.slice(i, i + step).map((t) => -t.logp)));
  const svg = h("svg", { viewBox: `0 0 ${bars.length} 40`, preserveAspectRatio: "none", class: "strip", role: "img", "aria-label": `how unlikely each token was, up to ${num(most)} nats` });
  append(svg, bars.map((v, i) => h("svg:rect", { x: i + 0.1, width: 0.8, y: 40 - (38 * v) / most, height: Math.max(0.4, (38 * v) / most) })));
  return h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, "−log p along the answer")), svg);
}
