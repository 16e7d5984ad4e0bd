// The turns of an answer: what was observed, what was said, the tools that were called, pictures; folded, each with its reward and credit.
import { h, num, signed, count } from "./dom.js";

const SEEN = 4000; // tokens of what was observed before a turn
const OPEN_TURNS = 6; // turns that are open at first; of more, the first and the last

const own = (all, k) => all.filter((t) => t.turn === k && t.own && t.adv !== null);
export const credit = (all, k) => { const some = own(all, k); return some.length ? some.reduce((sum, t) => sum + t.adv, 0) / some.length : null; };

export function picture(p, alt, props = {}) {
  const zoom = Math.max(1, Math.floor((props.size || 96) / Math.max(p.width, p.height)));
  return h("img", { class: "pixels", src: p.src, width: p.width * zoom, height: p.height * zoom, alt });
}

export function pictures(list) {
  if (!list.length) return null;
  return h("ul", { class: "pictures" }, list.map((p, i) => h("li", {}, picture(p, `${p.name}, picture ${i + 1}`), h("span", { class: "under quiet" }, `${p.name} · black ${num(p.low)}, white ${num(p.high)}`))));
}

function shown(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

export function rightAnswer(gold) {
  const text = gold === null || gold === undefined || gold === "" ? "" : shown(gold);
  return text ? h("p", { class: "gold" }, h("b", {}, "right answer "), text) : null;
}

// what could not be called, or came back with an error that the model reads
const failed = (c) => Boolean(c.fault) || (typeof c.result === "string" && c.result.startsWith("error:"));

const short_ = (text) => (text.length > 80 ? `${text.slice(0, 80)}…` : text);

export function call(c) {
  const given = c.arguments === undefined ? "" : shown(c.arguments), first = given.replace(/\s+/g, " ");
  return h("details", { class: `call ${failed(c) ? "fault" : ""}` },
    h("summary", {}, h("b", {}, c.name || "not called"), c.name || !c.fault ? h("code", {}, `(${short_(first)})`) : h("code", {}, short_(shown(c.fault).replace(/\s+/g, " "))), failed(c) ? h("span", { class: "tag wrong" }, "failed") : null, c.repaired ? h("span", { class: "tag" }, "repaired") : null, typeof c.seconds === "number" ? h("span", { class: "quiet" }, `${num(c.seconds)} s`) : null),
    given ? [h("h4", {}, "arguments"), h("pre", {}, given)] : null,
    c.fault ? [h("h4", {}, "fault"), h("pre", { class: "bad" }, shown(c.fault))] : null,
    c.result !== undefined ? [h("h4", {}, "result"), h("pre", {}, shown(c.result))] : null);
}

// one turn, around the tokens that were said in it
export function turnBlock(found, all, k, said) {
  const turn = found.turns[k], several = found.turns.length > 1, worth = credit(all, k);
  const text = turn.seen.slice(0, SEEN).map((id) => found.pieces[id] ?? `#${id}`).join("");
  const before = turn.seen.length ? h("details", { class: "seen", open: k > 0 && turn.seen.length < 200 }, h("summary", {}, k ? (turn.continues ? `observed: ${turn.seen.length} tokens` : `a new context: ${turn.seen.length} tokens`) : `prompt: ${turn.seen.length} tokens`), h("p", { class: "text" }, text, turn.seen.length > SEEN ? h("span", { class: "quiet" }, ` … ${turn.seen.length - SEEN} more`) : null)) : null;
  const calls = turn.calls.length ? h("div", { class: "calls", role: "group", "aria-label": several ? `tools called in turn ${k + 1}` : "tools called" }, turn.calls.map(call)) : null;
  const inside = [before, pictures(turn.pictures), said, calls];
  if (!several) return inside;
  const open = found.turns.length <= OPEN_TURNS || k === 0 || k === found.turns.length - 1;
  return h("details", { class: "turn", open, "data-turn": k },
    h("summary", {}, h("b", {}, `turn ${k + 1}`), h("span", {}, count(turn.tokens.length, turn.drawn ? "action" : "token")), turn.reward !== null ? h("span", {}, `reward ${num(turn.reward)}`) : null, worth !== null ? h("span", {}, `credit ${signed(worth)}`) : null,
      turn.calls.length ? h("span", {}, count(turn.calls.length, "call")) : null, turn.calls.some(failed) ? h("span", { class: "tag wrong" }, "failed") : null), inside);
}

// reward and credit by turn; a click opens the turn
export function creditByTurn(found, all, body) {
  if (found.turns.length < 2) return null;
  const worths = found.turns.map((t, k) => credit(all, k)), most = Math.max(...worths.map((v) => Math.abs(v ?? 0)), 1e-9);
  const to = (k) => { const block = body.querySelector(`[data-turn="${k}"]`); if (block) { block.open = true; block.scrollIntoView({ block: "start" }); block.querySelector("summary").focus(); } };
  return h("section", { class: "by-turn", "aria-label": "Credit by turn" }, h("h3", {}, "Credit by turn"), h("ol", {}, found.turns.map((t, k) => h("li", {}, h("button", { type: "button", onclick: () => to(k) }, h("span", {}, `turn ${k + 1}`),
    h("span", { class: "bar", "aria-hidden": "true" }, h("i", { class: (worths[k] ?? 0) < 0 ? "minus" : "plus", css: { "--size": Math.abs(worths[k] ?? 0) / most } })), h("span", {}, worths[k] === null ? "–" : signed(worths[k])), h("span", { class: "quiet" }, t.reward === null ? "" : `reward ${num(t.reward)}`))))),
    h("button", { type: "button", class: "button", onclick: () => foldAll(body) }, "fold or unfold all"));
}

export function foldAll(body) {
  const all = [...body.querySelectorAll("details.turn")], open = all.some((d) => !d.open);
  for (const d of all) d.open = open;
}
