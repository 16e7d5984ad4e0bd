// All runs: search, filters, live progress, and those to lay over one another.
import { h, fill, num, plain, count, ago, duration, score, link, go, empty, select, input, spark, state, once, settle, joined, listed, MOST_RUNS } from "./dom.js";
import { get, isReport } from "./source.js";

const sparks = new Map(), badges = new Map(); // name -> [what it is of, the answer]: one for each run, however long the page is open
const MOST_ROWS = 500; // rows
const KINDS = ["state", "method", "task", "model"];

export async function runsView(main, params, keep) {
  const { runs } = await get("runs");
  if (!runs.length) {
    const look = () => get("runs").then((now) => now.runs.length && main.isConnected && show()).catch(() => {});
    const show = () => { for (const stop of stops.splice(0)) stop(); return runsView(main, params, keep); };
    const stops = [keep.every(4000, look)];
    return fill(main, h("div", { class: "head" }, h("h1", {}, "Runs")), empty("No runs here yet", "A run appears as soon as it has begun. Start one in this folder:", "posttrain run grpo --task word_problems"));
  }
  const chosen = new Set(listed(params.chosen));
  const list = h("tbody"), found_ = h("p", { class: "quiet", role: "status" }), bar = h("div", { class: "actions" });
  const wanted = { ...params };
  const change = (key, value) => { wanted[key] = value; go("runs", { ...wanted, chosen: joined(chosen) }, true); show(); };
  const options = (key) => [["", `any ${key}`], ...[...new Set(runs.map((r) => r[key]))].sort().map((v) => [v, v])];
  const rows = new Map(); // name -> [what it shows, its row]
  const seen = new IntersectionObserver((entries) => { for (const { target, isIntersecting } of entries) if (isIntersecting) { seen.unobserve(target); target.ask(); } });
  keep.close(() => seen.disconnect());
  const held = (r) => { const v = r.after ?? r.before; return v === null ? -Infinity : r.score === "accuracy" ? 100 * v : v; };
  const search = h("input", { type: "search", id: "search", placeholder: "Search runs  ( / )", "aria-label": "Search runs", value: wanted.q || "", oninput: once(120, () => change("q", search.value)) });
  const sorts = { started: (a, b) => b.started - a.started, score: (a, b) => (b.after ?? b.before ?? -9) - (a.after ?? a.before ?? -9), name: (a, b) => a.name.localeCompare(b.name), time: (a, b) => b.seconds - a.seconds, speed: (a, b) => (b.speed ?? -1) - (a.speed ?? -1) };

  function show() {
    const words = (wanted.q || "").toLowerCase().split(/\s+/).filter(Boolean);
    const found = runs.filter((r) => words.every((w) => `${r.name} ${r.method} ${r.task} ${r.model} ${r.state}`.toLowerCase().includes(w))
      && KINDS.every((k) => !wanted[k] || r[k] === wanted[k])
      && (!wanted.fast || (r.speed ?? -1) >= Number(wanted.fast)) && (!wanted.good || held(r) >= Number(wanted.good))).sort(sorts[wanted.sort] || sorts.started);
    const live = runs.filter((r) => r.state === "running").length;
    fill(found_, `${found.length} of ${runs.length} runs${live ? `, ${live} running` : ""}`);
    const inside = document.activeElement?.closest?.("tr[data-run]"), part = document.activeElement?.type === "checkbox" ? "input" : "a";
    settle(list, found.length ? found.slice(0, MOST_ROWS).map(kept) : [h("tr", {}, h("td", { colspan: "10" }, empty("No run matches", "Take a word out of the search, or a filter back.")))]);
    if (inside && !list.contains(document.activeElement)) rows.get(inside.dataset.run)?.[1].querySelector(part)?.focus({ preventScroll: true });
    if (found.length > MOST_ROWS) fill(found_, `${found.length} of ${runs.length} runs, ${MOST_ROWS} of them shown`);
    buttons();
  }

  function kept(run) { // the same row as long as it says the same
    const says = JSON.stringify({ ...run, seconds: run.state === "running" ? run.seconds : 0 }) + chosen.has(run.name);
    if (rows.get(run.name)?.[0] !== says) rows.set(run.name, [says, row(run)]);
    return rows.get(run.name)[1];
  }

  function buttons() {
    fill(bar, chosen.size > 1
      ? h("a", { class: "button primary", href: link("compare", { runs: joined([...chosen].slice(0, MOST_RUNS)) }) }, chosen.size > MOST_RUNS ? `Compare the first ${MOST_RUNS} of ${chosen.size}` : `Compare ${chosen.size} runs`)
      : h("span", { class: "quiet" }, "choose two or more to compare"));
  }

  function row(run) {
    const box = h("input", { type: "checkbox", "aria-label": `choose ${run.name}`, onchange: () => { if (box.checked) chosen.add(run.name); else chosen.delete(run.name); buttons(); } });
    box.checked = chosen.has(run.name);
    const curve = h("td", { class: "curve" }), badge = h("span");
    const share = run.steps ? Math.min(1, run.step / run.steps) : run.state === "finished" ? 1 : 0;
    const made = h("tr", { "data-run": run.name },
      h("td", { class: "pick" }, isReport ? null : box),
      h("th", { scope: "row" }, h("a", { class: "row-link", href: link("run", { run: run.name }) }, run.name), h("span", { class: "under" }, ago(run.started))),
      h("td", {}, run.method, h("span", { class: "under" }, run.model)),
      h("td", {}, run.task),
      h("td", {}, state(run), badge, run.why && run.state !== "finished" ? h("span", { class: "under", title: run.why }, run.why.slice(0, 60)) : null),
      h("td", { class: "n" }, run.steps ? `${run.step}/${run.steps}` : `${run.phase} ${run.step}`, h("span", { class: "meter", css: { "--share": share } }, h("i", {}))),
      curve,
      h("td", { class: "n score" }, run.before === null && run.after === null ? h("span", { class: "quiet" }, "not measured") : [score(run, run.before), " → ", h("b", {}, run.after === null ? "…" : score(run, run.after))], h("span", { class: "under" }, run.score.replaceAll("_", " "))),
      h("td", { class: "n" }, run.speed === null ? h("span", { class: "quiet" }, "–") : num(run.speed)),
      h("td", { class: "n" }, duration(run.seconds)));
    made.ask = () => { drawSpark(run, curve); drawBadge(run, badge); }; // once somebody sees it: a folder may have hundreds
    seen.observe(made);
    return made;
  }

  fill(main, h("div", { class: "head" }, h("h1", {}, "Runs"), h("div", { class: "links" }, found_, bar)),
    h("form", { class: "filters", onsubmit: (e) => e.preventDefault(), "aria-label": "Filter runs" }, h("div", { class: "field grow" }, search),
      ...KINDS.map((k) => select(k, options(k), wanted[k] || "", (v) => change(k, v), { name: k })),
      input("held out, at least", wanted.good, (v) => change("good", v), { type: "number", step: "any", size: "8", title: "accuracies in %" }),
      input("tokens/s, at least", wanted.fast, (v) => change("fast", v), { type: "number", min: "0", step: "any", size: "8" }),
      select("sort", [["", "newest"], ["score", "score"], ["name", "name"], ["time", "longest"], ["speed", "fastest"]], wanted.sort || "", (v) => change("sort", v))),
    h("div", { class: "table-wrap" }, h("table", { class: "list runs" }, h("caption", { class: "sr" }, "Runs"), h("thead", {}, h("tr", {}, ["", "name", "method", "task", "state", "steps", "reward", "held out", "tokens/s", "time"].map((t, i) =>
      h("th", { scope: "col", class: i === 5 || i > 6 ? "n" : "" }, t || h("span", { class: "sr" }, "choose"))))), list)));
  show();
  const selects = Object.fromEntries(KINDS.map((k) => [k, main.querySelector(`select[name=${k}]`)]));
  keep.refresh = async () => {
    const next = await get("runs");
    runs.splice(0, runs.length, ...next.runs);
    for (const [key, node] of Object.entries(selects)) { // a run of another method may have begun
      const now = options(key);
      if (now.length !== node.options.length && node !== document.activeElement) { fill(node, now.map((o) => h("option", { value: o[0], selected: o[0] === (wanted[key] || "") }, o[1]))); }
    }
    show();
  };
  if (!isReport) keep.every(4000, () => keep.refresh().catch((error) => fill(found_, h("span", { class: "bad" }, error.message))));
}

function remembered(all, run, of, ask) {
  if (all.get(run.name)?.[0] !== of) all.set(run.name, [of, ask()]);
  return all.get(run.name)[1];
}

async function drawBadge(run, place) {
  const { warnings, unscored = [] } = await remembered(badges, run, `${Math.floor(run.step / 10)} ${run.phase} ${run.state} ${run.started}`, () => get("warnings", { run: run.name }).catch(() => ({ warnings: [] })));
  const told = [...unscored.map((u) => `${u.failed} of ${u.made} answers could not be scored`), ...warnings.map((w) => w.says)];
  if (told.length) fill(place, h("a", { class: "badge", href: link("run", { run: run.name }), title: told.map(plain).join("\n") }, count(told.length, "warning")));
}

async function drawSpark(run, place) {
  const found = await remembered(sparks, run, `${run.step} ${run.phase} ${run.started}`, () => get("metrics", { run: run.name, names: "reward,loss", points: 60 }).catch(() => null));
  const curve = found && (new Set(found.curves.reward?.mean.filter((v) => v !== null)).size > 1 ? ["reward", found.curves.reward] : ["loss", found.curves.loss]);
  if (!curve || !curve[1] || !curve[1].mean.length) return;
  const known = curve[1].mean.filter((v) => v !== null);
  fill(place, spark(curve[1].mean, `${curve[0]} from ${num(known[0])} to ${num(known.at(-1))}`), curve[0] === "loss" ? h("span", { class: "under" }, "loss") : null);
}
