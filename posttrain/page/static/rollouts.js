// Answers: filters, pages, a scatter with a brush; a group side by side; the same prompt over time.
import { h, fill, num, signed, link, go, select, between, stepper, empty, trouble, rewardParts, count, ending, lengthy } from "./dom.js";
import { get, isReport, Failed } from "./source.js";
import { lines, scatter } from "./charts.js";
import { answerCard, said } from "./run.js";
import { pictures, rightAnswer } from "./turns.js";
import { treeOf } from "./tree.js";

const ORDERS = [["step", "in order"], ["newest", "newest first"], ["best", "best first"], ["worst", "worst first"]];
const STOPS = ["", "stop", "length", "answered", "max_turns", "max_context", "max_calls", "timeout", "structural", "content", "broken"];
const MOST = 600; // answers on the page at once

export async function rolloutsView(main, params, keep) {
  const about = await get("run", { run: params.run });
  if (!about.stored.length) return fill(main, h("h1", {}, "Answers"), empty("No answers are stored", about.settings.log_rollouts === 0 ? "This run has --log-rollouts 0." : "They appear with the first step.", "posttrain run … --log-rollouts -1"));
  const kept = about.stored.find((s) => s.phase === params.phase) || about.stored.at(-1), phase = kept.phase;
  const weights = about.phases.find((p) => p.name === phase).weights;
  const wanted = { ...params, phase };
  const set = (changes) => go("rollouts", { ...wanted, ...changes });
  const list = h("div", { class: "answers" }), status = h("p", { class: "quiet", role: "status" }), more = h("div", { class: "more" });
  const ends = (label, unit, low, high, hints = []) => between(label, unit, [low, high].map((key, i) => ({ value: wanted[key], onchange: (v) => set({ [key]: v }), hint: hints[i] })));
  const components = Object.keys(weights).length ? Object.keys(weights) : [];
  const active = ["first", "last", "low", "high", "component", "component_low", "component_high", "shortest", "longest", "stop", "text", "failed", "prompt", "role"].filter((k) => wanted[k]);
  const one = wanted.first && wanted.first === wanted.last ? Number(wanted.first) : 0;
  const steps = stepper("step", one ? `step ${one} of ${kept.last}` : wanted.first || wanted.last ? `steps ${wanted.first || kept.first} to ${wanted.last || kept.last}` : `all ${kept.last} steps`, (by) => move(by), [Boolean(one) && one <= kept.first, Boolean(one) && one >= kept.last]);
  function move(by) {
    const at = Number(wanted.first && wanted.first === wanted.last ? wanted.first : by > 0 ? kept.first - 1 : kept.last + 1) + by;
    const to = Math.min(kept.last, Math.max(kept.first, at));
    set({ first: to, last: to });
  }
  const text = h("input", { type: "search", id: "search", placeholder: "Text in prompt or answer  ( / )", "aria-label": "Text in prompt or answer", value: wanted.text || "", onchange: () => set({ text: text.value }) });
  const failed = h("input", { type: "checkbox", onchange: () => set({ failed: failed.checked ? "1" : "" }) });
  failed.checked = Boolean(wanted.failed);
  fill(main, h("div", { class: "head" }, h("h1", {}, "Answers"), steps),
    h("form", { class: "filters", "aria-label": "Filter answers", onsubmit: (e) => { e.preventDefault(); set({ text: text.value }); } },
      h("div", { class: "field grow" }, text),
      about.stored.length > 1 ? select("phase", about.stored.map((s) => [s.phase, s.phase]), phase, (v) => set({ phase: v, first: "", last: "" })) : null,
      select("order", ORDERS, wanted.order || "step", (v) => set({ order: v === "step" ? "" : v })),
      ends("steps", "step", "first", "last", [kept.first, kept.last]), ends("reward", "reward", "low", "high"), ends("tokens", "tokens", "shortest", "longest"),
      components.length > 1 ? [select("component", [["", "any"], ...components.map((c) => [c, c])], wanted.component || "", (v) => set({ component: v, component_low: v ? wanted.component_low : "", component_high: v ? wanted.component_high : "" })),
        wanted.component ? ends(`${wanted.component} earned`, "component", "component_low", "component_high") : null] : null,
      select("ended", STOPS.map((s) => [s, s === "" ? "any way" : s === "length" ? "cut off" : s === "stop" ? "by itself" : s]), wanted.stop || "", (v) => set({ stop: v })),
      h("label", { class: "check" }, failed, "not scored only"),
      active.length ? h("a", { class: "button", href: link("rollouts", { run: wanted.run, phase, order: wanted.order }) }, "clear filters") : null),
    wanted.role ? h("p", { class: "note" }, `Only the role ${wanted.role}. `, h("a", { href: link("rollouts", { ...wanted, role: "" }) }, "show every role")) : null,
    wanted.prompt ? h("p", { class: "note" }, "Only one prompt, over all steps. ", h("a", { href: link("rollouts", { ...wanted, prompt: "" }) }, "show every prompt")) : null,
    h("div", { class: "with-side" }, h("section", { "aria-label": "Answers" }, status, list, more), h("aside", { id: "scatter", "aria-label": "Reward against length" })));
  let seen = 0, looked = 0;
  async function load(at) {
    fill(more, h("p", { class: "quiet" }, "Looking …"));
    const query = Object.fromEntries(["run", "phase", "first", "last", "prompt", "low", "high", "component", "component_low", "component_high", "shortest", "longest", "stop", "text", "failed", "role", "order"].map((k) => [k, wanted[k]]));
    if (!query.component) { delete query.component_low; delete query.component_high; }
    const found = await get("rollouts", { ...query, limit: 50, at: at ? JSON.stringify(at) : undefined });
    seen += found.rows.length; looked += found.looked;
    list.append(...found.rows.map((r) => answerCard(wanted.run, kept.written ? { ...r, adv: null } : r, weights)));
    while (list.children.length > MOST) list.firstChild.remove();
    fill(status, seen ? `${seen} answers${found.next ? " so far" : ""}` : found.next ? `none among the first ${looked.toLocaleString("en")} looked at` : "");
    if (!seen && !found.next) fill(list, empty("No answer matches", active.length ? "Take a filter back." : "No answers of this phase are stored."));
    const next = h("button", { type: "button", class: "button", onclick: () => load(found.next).catch((e) => fill(more, h("p", { class: "bad" }, e.message))) }, found.complete ? "more answers" : "look further");
    fill(more, found.next ? next : null);
  }
  await load(null).catch((error) => { if (!(error instanceof Failed)) throw error; fill(more); fill(list, trouble(error, "h2")); });
  const cloud = await get("scatter", { run: wanted.run, phase }).catch(() => ({ points: [] }));
  const side = document.getElementById("scatter");
  if (side) fill(side, h("h2", { class: "sr" }, "Picture"), scatter(cloud.points, (area) => set(area), wanted), cloud.every > 1 ? h("p", { class: "quiet" }, `one answer in ${cloud.every}; the later the step, the stronger the colour`) : h("p", { class: "quiet" }, "the later the step, the stronger the colour"));
  keep.step = move;
  if (isReport) status.append(h("span", { class: "quiet" }, " · a report keeps some of the answers; posttrain view shows them all"));
}

export async function groupView(main, params, keep) {
  const key = { run: params.run, phase: params.phase, step: params.step, group: params.group };
  const found = await get("group", key);
  const turnTo = (by) => go("group", { ...key, group: Math.max(0, Math.min(found.groups - 1, Number(params.group) + by)) });
  const scored = found.answers.filter((a) => a.total !== null);
  const most_ = Math.max(...scored.map((a) => a.total)), apart = scored.some((a) => a.total < most_), best = (a) => apart && a.total === most_;
  const texts = new Set(found.answers.map((a) => a.text)), most = Math.max(...found.answers.map((a) => Math.abs(a.adv || 0)), 1e-9);
  const totals = scored.map((a) => a.total), mean = totals.reduce((a, b) => a + b, 0) / (totals.length || 1);
  const roles = [...new Set(found.answers.map((a) => a.role))], several = roles.length > 1, forks = found.answers.some((a) => a.at !== null && a.at !== undefined);
  const episode = (a) => a.episode ?? a.sample_index, episodes = [...new Set(found.answers.map(episode))];
  const card = (a) => h("article", { class: `answer col ${best(a) ? "best" : ""}`, tabindex: "-1", "data-open": link("tokens", { ...key, sample: a.sample_index }) },
    h("header", {}, h("span", { class: `reward ${a.failed ? "bad" : ""}` }, a.failed ? "not scored" : num(a.total)), h("span", { class: "quiet" }, `#${a.sample_index + 1} · ${count(a.length, a.picture ? "action" : "token")}${a.said ? ` in ${a.said.length} turns` : ""}`), several ? h("span", { class: "tag" }, a.role) : null, ending(a.stop) ? h("span", { class: "tag" }, ending(a.stop)) : null, best(a) ? h("span", { class: "tag good" }, found.written ? "preferred" : "best") : null),
    a.adv === null || found.written ? null : h("div", { class: "advantage" }, h("span", { class: "quiet" }, "advantage"), h("span", { class: "bar", "aria-hidden": "true" }, h("i", { class: a.adv < 0 ? "minus" : "plus", css: { "--size": Math.abs(a.adv || 0) / most } })), h("span", {}, signed(a.adv))),
    rewardParts(a, found.weights),
    a.stored ? said(a) : h("p", { class: "quiet" }, "its text is not kept"),
    a.stored ? h("footer", {}, h("a", { href: link("tokens", { ...key, sample: a.sample_index }) }, a.picture ? "steps" : "tokens"), a.said && !several ? h("a", { href: link("episode", { ...key, sample: a.sample_index }) }, "as it went") : null) : null);
  const tree = forks ? h("div", {}, await treeOf(key).catch((error) => { if (!(error instanceof Failed)) throw error; return h("p", { class: "quiet" }, error.message); })) : null;
  fill(main, h("div", { class: "head" }, h("div", {}, h("h1", {}, `Prompt ${Number(params.group) + 1} of step ${params.step}`), h("p", { class: "facts" }, h("span", {}, several ? `${episodes.length} episodes of ${roles.join(" and ")}` : `${count(found.answers.length, "answer")}${found.answers.some((a) => a.picture) ? "" : `, ${texts.size} distinct`}`), totals.length ? h("span", {}, `mean reward ${num(mean)}, from ${num(Math.min(...totals))} to ${num(Math.max(...totals))}`) : null,
    Math.min(...totals) === Math.max(...totals) && totals.length > 1 ? h("span", { class: "tag" }, "all equal: teaches nothing") : null)),
    stepper("prompt", `prompt ${Number(params.group) + 1} of ${found.groups}`, turnTo, [Number(params.group) <= 0, Number(params.group) >= found.groups - 1])),
    h("section", { class: "question", "aria-label": "Prompt" }, (Array.isArray(found.messages) ? found.messages.filter((m) => m && typeof m === "object") : [{ role: "user", content: found.prompt === "" ? "(empty)" : found.prompt ?? "(not kept)" }]).map((m) => h("div", { class: "message" }, h("b", {}, m.role || "user"), lengthy(typeof m.content === "string" ? m.content : String(JSON.stringify(m.content))))), pictures(found.pictures || []), rightAnswer(found.gold)),
    forks ? tree : null,
    several ? h("section", { class: "episodes", "aria-label": "Episodes" }, episodes.map((e) => h("section", { class: "episode", "aria-label": `Episode ${e + 1}` }, h("h2", {}, `episode ${e + 1} `, h("a", { href: link("episode", { ...key, sample: found.answers.find((a) => episode(a) === e).sample_index }) }, "as it went")), h("div", { class: "side-by-side" }, found.answers.filter((a) => episode(a) === e).map(card)))))
      : h("section", { class: "side-by-side", "aria-label": "Answers" }, found.answers.map(card)),
    found.history.length > 1 ? h("section", {}, h("h2", {}, "This prompt over time"), h("div", { class: "charts" }, lines({ title: "mean reward of its answers", lines: [{ label: "reward", x: found.history.map((p) => p.step), mean: found.history.map((p) => p.reward) }], sync: "prompt", whole: true, onpick: (step) => { const p = found.history.find((q) => q.step === step); if (p) go("group", { ...key, step, group: p.group_index }); } }),
      lines({ title: "tokens per answer", lines: [{ label: "tokens", x: found.history.map((p) => p.step), mean: found.history.map((p) => p.length) }], sync: "prompt", whole: true, zero: true })), h("p", {}, h("a", { href: link("rollouts", { run: params.run, phase: params.phase, prompt: found.prompt_id }) }, "every answer to it"))) : null);
  keep.sample = turnTo;
}
