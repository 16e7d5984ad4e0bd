// The frame: which view, keys, theme.
import { h, fill, link, here, go, trouble, plain } from "./dom.js";
import { isReport, reportInfo, chatWith } from "./source.js";
import { forgetCharts, recolour } from "./charts.js";
import { runsView } from "./runs.js";
import { runView } from "./run.js";
import { compareView } from "./compare.js";
import { rolloutsView, groupView } from "./rollouts.js";
import { tokensView } from "./tokens.js";
import { episodeView } from "./episode.js";
import { fieldView, systemView } from "./field.js";
import { sheetsView } from "./sheets.js";
import { chatView } from "./chat.js";

const VIEWS = { runs: runsView, run: runView, compare: compareView, rollouts: rolloutsView, group: groupView, tokens: tokensView, episode: episodeView, field: fieldView, system: systemView, sheets: sheetsView, chat: chatView };
const KEYS = [["j k", "next and previous row"], ["Enter", "open it"], ["g", "its group"], ["h l", "earlier and later step"], ["[ ]", "previous and next answer, or prompt"], ["a p e r", "colour tokens by advantage, probability, entropy, ratio"], ["t v", "by KL to the reference, value"], ["f", "fold or unfold turns"], ["x", "choose a run to compare"], ["c", "compare the chosen"], ["← →", "walk along a curve, or an answer's tokens"], ["+ − 0", "zoom into a curve, out, all of it"], ["/", "search"], ["Esc", "up"], ["d", "dark or light"], ["?", "this list"]];
const main = document.getElementById("main"), top_ = document.getElementById("top");
let current = null, drawing = 0;
const places = new Map(); // an entry of the history -> how far it was scrolled down: whoever goes back is where they were
let entry = 0, entries = 0, settled = false, view_ = "";

function theme() {
  const saved = storage("theme");
  if (saved) document.documentElement.dataset.theme = saved; else delete document.documentElement.dataset.theme;
}

function storage(key, value) {
  try { if (value === undefined) return localStorage.getItem(key); localStorage.setItem(key, value); } catch { /* a report opened from a file may have none */ }
  return null;
}

function turn() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  storage("theme", dark ? "light" : "dark");
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  recolour();
}

function frame({ view, params }) {
  const crumbs = [];
  if (params.run) {
    crumbs.push(["run", link("run", { run: params.run }), params.run]);
    if (view !== "run") crumbs.push(["rollouts", link("rollouts", { run: params.run, phase: params.phase }), "answers"]);
    const { run, phase, step, group, sample } = params;
    if (group !== undefined && view !== "rollouts") crumbs.push(["group", link("group", { run, phase, step, group }), `step ${step}, prompt ${Number(group) + 1}`]);
    if (view === "tokens") crumbs.push(["tokens", link("tokens", { run, phase, step, group, sample }), `answer ${Number(sample) + 1}`]);
    if (view === "episode") crumbs.push(["episode", link("episode", { run, phase, step, group, sample }), "episode"]);
  }
  const at = (name, to, text) => h("a", { href: to, "aria-current": view === name ? "page" : null }, text);
  fill(top_, h("a", { class: "brand", href: isReport ? link("run", { run: reportInfo.run }) : "#runs" }, h("span", { class: "mark", "aria-hidden": "true" }), "posttrain"),
    h("nav", { "aria-label": "Views" }, isReport ? null : at("runs", "#runs", "Runs"), isReport ? null : [at("field", "#field", "Field"), at("sheets", "#sheets", "Sheets")], chatWith.length ? at("chat", "#chat", "Chat") : null, crumbs.length ? h("span", { class: "crumbs" }, crumbs.map(([name, to, text]) => [h("span", { class: "sep", "aria-hidden": "true" }, "/"), at(name, to, text)])) : null),
    h("div", { class: "tools" }, h("span", { class: "stream", id: "stream" }, h("i", { "aria-hidden": "true" }), h("span", { class: "sr" })), isReport ? h("span", { class: "quiet" }, `report of ${reportInfo.date}`) : null,
      h("button", { type: "button", onclick: turn, "aria-label": "dark or light" }, "◐"), h("button", { type: "button", onclick: help, "aria-label": "keys" }, "?")));
  document.title = [params.run && plain(params.run) || params.name, view === "run" ? "" : view, "posttrain"].filter(Boolean).join(" · ");
}

function help() {
  const dialog = h("dialog", { "aria-label": "Keys" }, h("h2", {}, "Keys"), h("dl", { class: "keys" }, KEYS.map(([k, what]) => [h("dt", {}, k.split(" ").map((one) => h("kbd", {}, one))), h("dd", {}, what)])), h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "close"));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function arrive() {
  if (history.state?.entry === undefined) history.replaceState({ entry: Date.now() + ++entries }, "");
  entry = history.state.entry;
  settled = false;
}

// a control that is there again in the next drawing of the same view
const named = (node) => node.id || node.getAttribute("aria-label") || node.closest("label")?.firstChild?.textContent || "";

async function show() {
  arrive();
  const at = here(), mine = ++drawing, held = at.view === view_ && main.contains(document.activeElement) ? named(document.activeElement) : "";
  view_ = at.view;
  if (isReport && (at.view === "runs" || !VIEWS[at.view])) return go("run", { run: reportInfo.run }, true), show();
  current?.stop();
  const stops = [];
  const keep = { close: (f) => (mine === drawing ? stops.push(f) : f()), every: (ms, f) => { const t = setInterval(() => { if (!document.hidden) f(); }, ms), stop = () => clearInterval(t); stops.push(stop); return stop; }, stop: () => { for (const f of stops) f(); } };
  current = keep;
  delete document.body.dataset.stream;
  forgetCharts();
  frame(at);
  const stage = h("div", { class: `view view-${at.view}` });
  main.setAttribute("aria-busy", "true");
  const early = setTimeout(() => { if (mine === drawing && !stage.children.length) fill(main, h("p", { class: "quiet pad" }, "Loading …")); }, 150);
  let watch = null;
  try {
    const view = VIEWS[at.view];
    if (!view) throw new Error(`There is no view named ${at.view}; the list of runs is at the top.`);
    const drawn = view(stage, at.params, keep);
    const shown = () => { if (mine === drawing && !stage.isConnected && stage.children.length) {
    fill(main, stage);
    scrollTo(0, places.get(entry) || 0);
    const same = held && [...main.querySelectorAll("input, select, button, .plot")].find((node) => named(node) === held);
    if (mine > 1 && document.activeElement === document.body) (same || main).focus({ preventScroll: true }); // where the keyboard was, not at the top again
  } };
    watch = new MutationObserver(shown);
    watch.observe(stage, { childList: true });
    await drawn;
    shown();
    if (mine === drawing && places.has(entry)) scrollTo(0, places.get(entry));
  } catch (error) {
    if (mine === drawing) fill(main, h("div", { class: "view" }, trouble(error)));
  } finally {
    clearTimeout(early);
    watch?.disconnect();
    if (mine === drawing) { main.removeAttribute("aria-busy"); settled = true; }
  }
}

function rows() { return [...main.querySelectorAll("tr[data-run], article.answer, ul.systems li")]; }

function walk(by) {
  const all = rows(), now = all.findIndex((r) => r.contains(document.activeElement));
  const next = all[Math.max(0, Math.min(all.length - 1, now + by))];
  if (!next) return;
  const to = next.matches("article") ? next : next.querySelector("a");
  to.focus();
  to.scrollIntoView({ block: "nearest" });
}

function up({ view, params }) {
  const { run, phase, step, group } = params;
  if (view === "tokens" || view === "episode") go("group", { run, phase, step, group });
  else if (view === "group") go("rollouts", { run, phase, first: step, last: step });
  else if (view === "rollouts") go("run", { run });
  else if (view === "system") go("field", {});
  else if (!isReport) go("runs", {});
}

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
  const typing = e.target.closest("input:not([type=checkbox]), select, textarea");
  if (e.key === "Escape" && typing) return typing.blur();
  if (typing) return;
  const row = e.target.closest?.("article.answer, tr[data-run]"), at = here();
  const acts = {
    j: () => walk(1), k: () => walk(-1), "/": () => document.getElementById("search")?.focus(), "?": help, d: turn, Escape: () => up(at),
    Enter: () => (row?.dataset.open && e.target === row ? (location.hash = row.dataset.open) : null),
    g: () => (row?.dataset.group ? (location.hash = row.dataset.group) : at.view === "tokens" ? up(at) : null),
    h: () => current.step?.(-1), l: () => current.step?.(1), "[": () => current.sample?.(-1), "]": () => current.sample?.(1),
    a: () => current.colour?.("adv"), p: () => current.colour?.("logp"), e: () => current.colour?.("entropy"), r: () => current.colour?.("ratio"), t: () => current.colour?.("kl"), v: () => current.colour?.("value"), f: () => current.fold?.(),
    x: () => row?.querySelector("input[type=checkbox]")?.click(), c: () => main.querySelector("a.primary")?.click(),
  };
  if (!acts[e.key]) return;
  if (e.key !== "Enter") e.preventDefault();
  acts[e.key]();
});
history.scrollRestoration = "manual";
addEventListener("scroll", () => { if (settled) places.set(entry, scrollY); }, { passive: true });
addEventListener("hashchange", () => { if (location.hash !== "#main") show(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
theme();
show();
