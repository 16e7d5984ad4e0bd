// An episode as it went: the turns of all its roles in order of time, to be read like a conversation; each leads to its tokens.
import { h, fill, num, signed, link, count, ending, lengthy } from "./dom.js";
import { get } from "./source.js";
import { call, rightAnswer } from "./turns.js";

export async function episodeView(main, params, keep) {
  const key = { run: params.run, phase: params.phase, step: params.step, group: params.group };
  const found = await get("episode", { ...key, sample: params.sample });
  const several = found.roles.length > 1, places = new Map(found.roles.map((r, i) => [r.role, i]));
  const tokens = (sample) => link("tokens", { ...key, sample });
  const block = (t, n) => h("li", { class: `move role-${places.get(t.role) % 6}` },
    h("header", {}, h("b", {}, several ? t.role : `turn ${n + 1}`), h("span", { class: "quiet" }, `${several ? `turn ${n + 1} · ` : ""}${count(t.tokens, "token")}`),
      t.reward !== null ? h("span", {}, `reward ${num(t.reward)}`) : null, t.credit !== null ? h("span", {}, `credit ${signed(t.credit)}`) : null, h("a", { href: tokens(t.sample_index), "aria-label": `tokens of turn ${n + 1}` }, "tokens")),
    t.observed ? h("details", { class: "seen", open: t.turn > 0 && t.observed < 200 }, h("summary", {}, `${t.turn ? (t.continues ? "observed" : "a new context") : "prompt"}: ${count(t.observed, "token")}`), h("p", { class: "text" }, t.seen)) : null,
    t.text.trim() ? lengthy(t.text) : h("p", { class: "quiet" }, "(nothing)"), t.cut ? h("span", { class: "quiet" }, " …") : null,
    t.calls.length ? h("div", { class: "calls", role: "group", "aria-label": `tools called in turn ${n + 1}` }, t.calls.map(call)) : null);
  fill(main, h("div", { class: "head" }, h("div", {}, h("h1", {}, `Episode ${found.episode + 1} of prompt ${Number(params.group) + 1}, step ${params.step}`),
    h("p", { class: "facts" }, h("span", {}, count(found.turns.length + found.left_out, "turn")), found.roles.map((r) => h("span", {}, several ? [h("b", {}, r.role), " "] : null, `reward ${r.failed ? "not scored" : num(r.total)}`, r.adv === null ? "" : `, advantage ${signed(r.adv)}`, ending(r.stop) ? `, ${ending(r.stop)}` : ""))),
    several && !found.ordered ? h("p", { class: "note" }, "Who moved when is not stored of this run: role after role.") : null), h("a", { class: "button", href: link("group", key) }, "its group")),
    h("section", { class: "question", "aria-label": "Prompt" }, lengthy(found.prompt || "(empty)"), rightAnswer(found.gold)),
    h("ol", { class: "moves" }, found.turns.map(block)), found.left_out ? h("p", { class: "quiet" }, `… ${count(found.left_out, "turn")} more`) : null);
  keep.sample = null;
}
