// All runs: search, filters, live progress, and those to lay over one another.
import { h, fill, num, plain, ago, duration, score, link, go, empty, select, input, spark, state, once } from "./dom.js";
import { get, isReport } from "./source.js";

const sparks = new Map(), badges = new Map();

export async function runsView(main, params, keep) {
  const { runs } = await get("runs");
  if (!runs.length) {
    return fill(main, h("div", { class: "head" }, h("h1", {}, "Runs")), empty("No runs here yet", "A run appears as soon as it has begun. Start one in this folder:", "posttrain run grpo --task word_problems"));
  }
  const chosen = new Set((params.chosen || "").split(",").filter(Boolean));
  const list = h("tbody"), count = h("p", { class: "quiet", role: "status" }), bar = h("div", { class: "actions" });
  const wanted = { ...params };
  const change = (key, value) => { wanted[key] = value; go("runs", { ...wanted, chosen: [...chosen].join(",") }, true); show(); };
  const options = (key) => [["", `any ${key}`], ...[...new Set(runs.map((r) => r[key]))].sort().map((v) => [v, v])];
  const search = h("input", { type: "search", id: "search", placeholder: "Search runs  ( / )", "aria-label": "Search runs", value: wanted.q || "", oninput: once(120, () => change("q", search.value)) });
  const sorts = { started: (a, b) => b.started - a.started, score: (a, b) => (b.after ?? b.before ?? -9) - (a.after ?? a.before ?? -9), name: (a, b) => a.name.localeCompare(b.name), time: (a, b) => b.seconds - a.seconds, speed: (a, b) => (b.speed ?? -1) - (a.speed ?? -1) };

  function show() {
    const words = (wanted.q || "").toLowerCase().split(/\s+/).filter(Boolean);
    const found = runs.filter((r) => words.every((w) => `${r.name} ${r.method} ${r.task} ${r.model} ${r.state}`.toLowerCase().includes(w))
      && ["state", "method", "task", "model"].every((k) => !wanted[k] || r[k] === wanted[k])
      && (!wanted.fast || (r.speed ?? -1) >= Number(wanted.fast))).sort(sorts[wanted.sort] || sorts.started);
    const live = runs.filter((r) => r.state === "running").length;
    fill(count, `${found.length} of ${runs.length} runs${live ? `, ${live} running` : ""}`);
    fill(list, found.slice(0, 500).map(row));
    if (!found.length) fill(list, h("tr", {}, h("td", { colspan: "10" }, empty("No run matches", "Take a word out of the search, or a filter back."))));
    buttons();
  }

  function buttons() {
    fill(bar, chosen.size > 1
      ? h("a", { class: "button primary", href: link("compare", { runs: [...chosen].join(",") }) }, `Compare ${chosen.size} runs`)
      : h("span", { class: "quiet" }, "choose two or more to compare"));
  }

  function row(run) {
    const box = h("input", { type: "checkbox", "aria-label": `choose ${run.name}`, onchange: () => { if (box.checked) chosen.add(run.name); else chosen.delete(run.name); buttons(); } });
    box.checked = chosen.has(run.name);
    const curve = h("td", { class: "curve" }), badge = h("span");
    drawSpark(run, curve);
    drawBadge(run, badge);
    const share = run.steps ? Math.min(1, run.step / run.steps) : run.state === "finished" ? 1 : 0;
    return h("tr", { "data-run": run.name },
      h("td", { class: "pick" }, isReport ? null : box),
      h("th", { scope: "row" }, h("a", { class: "row-link", href: link("run", { run: run.name }) }, run.name), h("span", { class: "under" }, ago(run.started))),
      h("td", {}, run.method, h("span", { class: "under" }, run.model)),
      h("td", {}, run.task),
      h("td", {}, state(run), badge, run.why && run.state !== "finished" ? h("span", { class: "under", title: run.why }, run.why.slice(0, 60)) : null),
      h("td", { class: "n" }, run.steps ? `${run.step}/${run.steps}` : `${run.step}`, h("span", { class: "meter", css: { "--share": share } }, h("i", {}))),
      curve,
      h("td", { class: "n score" }, run.before === null && run.after === null ? h("span", { class: "quiet" }, "not measured") : [score(run, run.before), " → ", h("b", {}, run.after === null ? "…" : score(run, run.after))], h("span", { class: "under" }, run.score.replaceAll("_", " "))),
      h("td", { class: "n" }, run.speed === null ? h("span", { class: "quiet" }, "–") : num(run.speed)),
      h("td", { class: "n" }, duration(run.seconds)));
  }

  fill(main, h("div", { class: "head" }, h("h1", {}, "Runs"), count),
    h("form", { class: "filters", onsubmit: (e) => e.preventDefault(), "aria-label": "Filter runs" }, h("div", { class: "field grow" }, search),
      ...["state", "method", "task", "model"].map((k) => select(k, options(k), wanted[k] || "", (v) => change(k, v))),
      input("tokens/s, at least", wanted.fast, (v) => change("fast", v), { type: "number", min: "0", step: "any", size: "8" }),
      select("sort", [["", "newest"], ["score", "score"], ["name", "name"], ["time", "longest"], ["speed", "fastest"]], wanted.sort || "", (v) => change("sort", v)), bar),
    h("div", { class: "table-wrap" }, h("table", { class: "list runs" }, h("caption", { class: "sr" }, "Runs"), h("thead", {}, h("tr", {}, ["", "name", "method", "task", "state", "steps", "reward", "held out", "tokens/s", "time"].map((t, i) =>
      h("th", { scope: "col", class: i === 5 || i > 6 ? "n" : "" }, t || h("span", { class: "sr" }, "choose"))))), list)));
  show();
  keep.refresh = async () => { const next = await get("runs"); runs.splice(0, runs.length, ...next.runs); show(); };
  if (!isReport) keep.every(4000, () => document.activeElement?.type === "checkbox" || keep.refresh());
}

async function drawBadge(run, place) {
  const key = `${run.name} ${Math.floor(run.step / 10)} ${run.state}`;
  if (!badges.has(key)) badges.set(key, get("warnings", { run: run.name }).catch(() => ({ warnings: [] })));
  const { warnings } = await badges.get(key);
  if (warnings.length) fill(place, h("a", { class: "badge", href: link("run", { run: run.name }), title: warnings.map((w) => plain(w.says)).join("\n") }, `${warnings.length} warning${warnings.length > 1 ? "s" : ""}`));
}

async function drawSpark(run, place) {
  const key = `${run.name} ${run.step} ${run.started}`;
  if (!sparks.has(key)) sparks.set(key, get("metrics", { run: run.name, names: "reward,loss", points: 60 }).catch(() => null));
  const found = await sparks.get(key);
  const curve = found && (new Set(found.curves.reward?.mean.filter((v) => v !== null)).size > 1 ? ["reward", found.curves.reward] : ["loss", found.curves.loss]);
  if (!curve || !curve[1] || !curve[1].mean.length) return;
  const known = curve[1].mean.filter((v) => v !== null);
  fill(place, spark(curve[1].mean, `${curve[0]} from ${num(known[0])} to ${num(known.at(-1))}`), curve[0] === "loss" ? h("span", { class: "under" }, "loss") : null);
}
