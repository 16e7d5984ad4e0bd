// A group whose answers fork from one another: a row for each, drawn from where it left another one, so what they share is there once.
import { h, fill, num, signed, plain, append, link, count } from "./dom.js";
import { get } from "./source.js";

const ROW = 30, LEFT = 20, WIDE = 900, RIGHT = 96, LETTER = 6.1;

// rows from the top: an answer, then those that left it, the latest fork first, so that no line crosses another
export function ordered(nodes) {
  const children = new Map(nodes.map((n) => [n.sample_index, []])), out = [], placed = new Set();
  const whole = new Map(nodes.map((n) => [n.sample_index, n]));
  const stem = (n) => { // whoever wrote the token before the fork: the parent, or one that it left later itself
    let at = n.at === 0 ? null : n.parent;
    for (let k = 0; at !== null && whole.get(at).at >= n.at && k < nodes.length; k++) at = whole.get(at).parent;
    return at;
  };
  nodes = nodes.map((n) => ({ ...n, parent: stem(n) }));
  for (const n of nodes) if (n.parent !== null) children.get(n.parent).push(n);
  const put = (n, depth) => {
    if (placed.has(n.sample_index)) return;
    placed.add(n.sample_index);
    out.push({ ...n, depth, row: out.length });
    for (const c of children.get(n.sample_index).sort((a, b) => b.at - a.at || a.sample_index - b.sample_index)) put(c, depth + 1);
  };
  for (const n of nodes) if (n.parent === null) put(n, 0);
  for (const n of nodes) put({ ...n, parent: null }, 0); // a circle, which only a damaged file has
  return out;
}

function shade(total, low, high) {
  if (total === null) return "none";
  return `q${high > low ? Math.round((4 * (total - low)) / (high - low)) : 2}`;
}

function start(n, width) {
  const most = Math.floor(width / LETTER), text = plain(n.own).replaceAll("\n", "↵");
  return most < 4 ? "" : text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

export async function treeOf(key) {
  const found = await get("tree", key), rows = ordered(found.nodes), by = new Map(rows.map((n) => [n.sample_index, n]));
  const totals = rows.map((n) => n.total).filter((v) => v !== null), low = Math.min(...totals), high = Math.max(...totals);
  const longest = Math.max(...rows.map((n) => n.length), 1), x = (tokens) => LEFT + ((WIDE - LEFT - RIGHT) * tokens) / longest, y = (n) => ROW * n.row + 24;
  const facts = h("div", { class: "branch-facts", role: "status", "aria-live": "polite" });
  const svg = h("svg", { viewBox: `0 0 ${WIDE} ${ROW * rows.length + 8}`, class: "tree", role: "group", "aria-label": `tree of ${rows.length} answers` });
  const leaf = (n) => h("svg:a", { href: link("tokens", { ...key, sample: n.sample_index }), class: "leaf", tabindex: n.row ? "-1" : "0", "data-row": n.row },
    h("svg:title", {}, n.parent === null ? "from the prompt" : `left answer ${n.parent + 1} after ${n.at} tokens`),
    h("svg:rect", { x: 2, y: ROW * n.row + 5, width: WIDE - 4, height: ROW - 2, rx: 4, class: "hit" }),
    h("svg:path", { d: n.parent === null ? (n.row ? `M${x(0)} ${y(rows[0])}V${y(n) - 5}q0 5 5 5H${Math.max(x(n.length), x(0) + 5)}` : `M${x(0)} ${y(n)}H${x(n.length)}`) : `M${x(n.at)} ${y(by.get(n.parent))}V${y(n) - 5}q0 5 5 5H${Math.max(x(n.length), x(n.at) + 5)}`, class: "line" }),
    h("svg:circle", { cx: x(n.length), cy: y(n), r: 5, class: `end ${shade(n.total, low, high)} ${n.stopped ? "" : "cut"}` }),
    h("svg:text", { x: x(n.at) + 8, y: y(n) - 5, class: "words" }, start(n, x(n.length) - x(n.at) - 14)),
    h("svg:text", { x: x(n.length) + 10, y: y(n) + 4 }, `#${n.sample_index + 1}  ${n.total === null ? "–" : num(n.total)}`));
  append(svg, [...[...rows].reverse().map(leaf), h("svg:circle", { cx: x(0), cy: y(rows[0]), r: 4, class: "root" })]); // what is drawn last lies on top: the stems
  function told(n) {
    const parent = n.parent === null ? null : by.get(n.parent), left = n.sample_index;
    for (const a of svg.querySelectorAll(".leaf")) { const on = Number(a.dataset.row) === n.row; a.classList.toggle("here", on); a.setAttribute("tabindex", on ? "0" : "-1"); }
    fill(facts, h("p", {}, h("b", {}, `answer ${left + 1}`), h("span", {}, ` reward ${n.total === null ? "not scored" : num(n.total)}`), h("span", {}, n.adv === null ? "" : `, advantage ${signed(n.adv)}`), h("span", { class: "quiet" }, `, ${n.length} tokens${n.stopped ? "" : ", cut off"}`), parent ? h("span", { class: "quiet" }, `; as answer ${parent.sample_index + 1} for ${n.at} tokens, then:`) : null), h("p", { class: "text" }, n.own || h("span", { class: "quiet" }, "(its text is not kept)")));
  }
  const at = (e) => { const a = e.target.closest?.(".leaf"); return a ? rows[Number(a.dataset.row)] : null; };
  for (const event of ["mouseover", "focusin"]) svg.addEventListener(event, (e) => { const n = at(e); if (n) told(n); });
  svg.addEventListener("keydown", (e) => {
    const n = at(e);
    if (!n) return;
    const to = { ArrowDown: rows[n.row + 1], ArrowUp: rows[n.row - 1], ArrowLeft: n.parent === null ? null : by.get(n.parent), ArrowRight: rows.find((c) => c.parent === n.sample_index), Home: rows[0], End: rows.at(-1) }[e.key];
    if (!to) return;
    e.preventDefault();
    svg.querySelector(`[data-row="${to.row}"]`).focus();
  });
  told(rows[0]);
  return h("section", { "aria-label": "Tree" }, h("h2", {}, "How they fork"), h("p", { class: "quiet" }, "From the prompt at the left: each line is an answer, from the token where it left another one to its end; the stronger the colour of its end, the more it earned. Arrow keys walk, Enter opens.", found.left_out ? ` ${count(found.left_out, "answer")} more of the group are not drawn.` : ""),
    h("div", { class: "tree-box" }, svg), facts);
}
