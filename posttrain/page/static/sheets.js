// Sheets: audits of rewards and figures of data sets, as `posttrain audit --save` and `posttrain data --save` have left them beside the runs.
import { h, fill, num, count, empty, append } from "./dom.js";
import { get } from "./source.js";

const FIGURES = [["n", "answers"], ["failed", "failed"], ["mean", "mean"], ["min", "lowest"], ["max", "highest"]];

function families(rows) {
  const good = (verdict) => (verdict === "ok" ? "tag good" : ["exploit", "paid"].includes(verdict) ? "tag wrong" : "tag");
  return h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": "Answers by family" }, h("table", { class: "list" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "family"), h("th", { scope: "col" }, "kind"), FIGURES.map(([, head]) => h("th", { scope: "col", class: "n" }, head)), h("th", { scope: "col" }, "verdict"))),
    h("tbody", {}, rows.map((r) => h("tr", {}, h("th", { scope: "row" }, r.family), h("td", {}, r.kind), FIGURES.map(([key]) => h("td", { class: "n" }, num(r[key]))), h("td", {}, h("span", { class: good(r.verdict) }, r.verdict), r.why ? h("span", { class: "quiet" }, ` ${r.why}`) : null))))));
}

function quantiles(rows) {
  if (!rows.length) return null;
  const heads = Object.keys(rows[0].quantiles);
  return h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": "Lengths" }, h("table", { class: "list" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "lengths"), heads.map((q) => h("th", { scope: "col", class: "n" }, q)))),
    h("tbody", {}, rows.map((r) => h("tr", {}, h("th", { scope: "row" }, r.of), heads.map((q) => h("td", { class: "n" }, num(r.quantiles[q]))))))));
}

function histogram({ of, bins }) {
  if (!bins.length) return null;
  const most = Math.max(...bins.map((b) => b[2]), 1), wide = 100 / bins.length;
  const svg = h("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", class: "strip", role: "img", "aria-label": `${of}: ${bins.map((b) => `${num(b[0])} to ${num(b[1])}: ${num(b[2])}`).join("; ")}`.slice(0, 2000) });
  append(svg, bins.map((b, i) => h("svg:rect", { x: i * wide + 0.4, width: wide - 0.8, y: 40 - (38 * b[2]) / most, height: (38 * b[2]) / most })));
  return h("figure", { class: "chart" }, h("figcaption", {}, h("b", {}, of), h("p", { class: "quiet" }, `${num(bins[0][0])} to ${num(bins.at(-1)[1])}, at most ${num(most)} in a bin`)), svg);
}

export function sheetFold(s, open) {
  const wrong = s.wrong.length, verdict = wrong ? count(wrong, "finding") : "nothing found";
  return h("details", { class: "fold sheet", open },
    h("summary", {}, h("span", { class: "tag" }, s.kind === "audit" ? "reward" : "data"), h("b", {}, s.title), h("span", { class: wrong ? "tag wrong" : "tag good" }, verdict), h("span", { class: "quiet" }, s.date)),
    h("pre", { class: "command" }, h("code", {}, s.command)),
    wrong ? h("ul", { class: "warnings" }, s.wrong.map((text) => h("li", {}, h("i", { "aria-hidden": "true" }, "!"), h("div", {}, text)))) : null,
    s.told.length ? h("ul", {}, s.told.map((text) => h("li", {}, text))) : null,
    s.kind === "audit" ? families(s.families) : [quantiles(s.lengths), h("div", { class: "charts" }, s.bins.map(histogram))]);
}

export async function sheetsView(main, params) {
  const { sheets } = await get("sheets");
  const head = [h("div", { class: "head" }, h("h1", {}, "Sheets")), h("p", { class: "lead" }, "What an optimiser could exploit in a reward, and what is in a data set, before anything is trained.")];
  if (!sheets.length) return fill(main, head, empty("No sheets here yet", "They are kept beside the runs by:", "posttrain audit numeric --task arithmetic --save\nposttrain data my.jsonl --save"));
  const asked = sheets.some((s) => s.name === params.name) ? params.name : sheets[0].name;
  fill(main, head, sheets.map((s) => sheetFold(s, s.name === asked)));
}
