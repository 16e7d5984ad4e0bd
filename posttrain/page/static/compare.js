// Runs over one another: curves, held-out points, settings with their differences marked.
import { h, fill, link, state, score, duration, empty, listed, MOST_RUNS } from "./dom.js";
import { get } from "./source.js";
import { lines } from "./charts.js";
import { GROUPS, UNITS, pick, onAxis, controls, toAxis, still } from "./run.js";

export async function compareView(main, params) {
  const asked = listed(params.runs), names = asked.slice(0, MOST_RUNS);
  if (names.length < 2) return fill(main, h("h1", {}, "Compare"), empty("Nothing to compare yet", "Choose two or more runs in the list."));
  const x = params.x && params.x !== "step" ? params.x : undefined;
  const [abouts, found] = await Promise.all([Promise.all(names.map((run) => get("run", { run }))), Promise.all(names.map((run) => get("metrics", { run, x })))]);
  const every = [...new Set(abouts.flatMap((a) => a.metrics))].sort();
  const charts = [];
  const overlay = (title, metric, more) => {
    const none = { step: [], mean: [] };
    const drawn = names.map((name, i) => ({ name, curve: found[i].curves[metric] || none }));
    return lines({ title, lines: drawn.map((d) => ({ label: d.name, ...d.curve, x: onAxis(d.curve) })), smoothing: Number(params.smooth || 0), sync: "compare", height: 220, unit: UNITS[x], whole: params.x !== "seconds", ...more });
  };
  const zero = [];
  const held = abouts.map((a, i) => ({ label: a.run.name, name: a.held_out?.name, all: (a.held_out?.points || []).map((p) => ({ ...p, x: toAxis(found[i])(p.step) })) }));
  for (const metric of ["accuracy", "held_out_reward"]) {
    if (!held.some((set) => set.name === metric)) continue;
    charts.push(lines({ title: `${metric === "accuracy" ? "held-out accuracy" : "held-out reward"}, 95%`, lines: [], points: held.map((set) => (set.name === metric ? set : { ...set, all: [] })), percent: metric === "accuracy", sync: "compare", height: 220, unit: UNITS[x], whole: params.x !== "seconds" }));
  }
  for (const [title, rule, more] of GROUPS) {
    for (const metric of pick(rule, every).slice(0, title === "reward components" ? 4 : 2)) {
      const named = pick(rule, every).length > 1 ? `${title}: ${metric.replace(/^reward\//, "")}` : title;
      if (title !== "reward" && found.every((f) => !f.curves[metric] || still(f.curves[metric]))) zero.push(named);
      else charts.push(overlay(named, metric, more));
    }
  }
  fill(main, h("div", { class: "head" }, h("h1", {}, "Compare"), h("p", { class: "quiet" }, asked.length > names.length ? `the first ${names.length} of ${asked.length} runs` : `${names.length} runs`)),
    h("ul", { class: "chips" }, abouts.map((a, i) => h("li", { class: `s${i + 1}` }, h("a", { href: link("run", { run: a.run.name }) }, a.run.name), state(a.run), h("span", { class: "held" }, score(a.run, a.run.before), " → ", score(a.run, a.run.after)), h("span", { class: "quiet" }, duration(a.run.seconds))))),
    controls(params, "compare"), h("h2", { class: "sr" }, "Curves"), h("div", { class: "charts wide" }, charts), zero.length ? h("p", { class: "quiet zero" }, `0 at every step of each: ${zero.join(", ")}.`) : null, table(abouts));
}

function table(abouts) {
  const keys = [...new Set(abouts.flatMap((a) => Object.keys(a.settings)))].filter((k) => k !== "name"); // which is above each column
  const value = (a, k) => String(a.settings[k] ?? "");
  const differs = (k) => new Set(abouts.map((a) => value(a, k))).size > 1;
  const some = (label, rows, mark) => h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": label }, h("table", { class: "list settings" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "setting"), abouts.map((a) => h("th", { scope: "col" }, a.run.name)))),
    h("tbody", {}, rows.map((k) => h("tr", { class: mark }, h("th", { scope: "row" }, k), abouts.map((a) => h("td", {}, value(a, k) || "–")))))));
  const other = keys.filter(differs), same = keys.filter((k) => !differs(k) && value(abouts[0], k) !== "");
  return h("section", {}, h("h2", {}, `Settings that differ (${other.length})`), other.length ? some("Settings that differ", other, "differs") : h("p", { class: "quiet" }, "none"),
    h("details", { class: "fold" }, h("summary", {}, `The same in all (${same.length})`), some("Settings that are the same", same, "")));
}
