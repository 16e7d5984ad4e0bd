// Elements, numbers and text for people. Text of models and users only ever becomes text nodes.

export function h(tag, props, ...children) {
  const node = tag === "svg" || tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.replace("svg:", ""))
    : document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "css") for (const [name, v] of Object.entries(value)) node.style.setProperty(name, v);
    else if (key === "value") node.value = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  append(node, children);
  return node;
}

export function append(node, children) {
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : visible(String(child)));
  }
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

// controls, C1 codes, bidirectional and invisible characters, halves of surrogate pairs: shown by their names
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

export function visible(text) {
  if (text.search(HIDDEN) < 0) return document.createTextNode(text);
  const out = document.createDocumentFragment();
  let at = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > at) out.append(text.slice(at, found.index));
    const code = found[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
    const mark = document.createElement("span");
    mark.className = "hidden-char";
    mark.textContent = `U+${code}`;
    out.append(mark);
    at = found.index + found[0].length;
  }
  out.append(text.slice(at));
  return out;
}

export function plain(text) {
  return String(text).replace(HIDDEN, (c) => `<U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
}

export function num(x, digits = 3, small = 1e-4) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  const text = size >= 1e6 || size < small ? size.toExponential(digits - 2).replace(/\.0+e/, "e").replace("e+", "e").replace("e-", "e−") : size >= 1000 ? Math.round(size).toLocaleString("en") : String(Number(size.toPrecision(digits)));
  return x < 0 ? `−${text}` : text;
}

export const signed = (x) => (x === null || x === undefined ? "–" : (x > 0 ? "+" : x < 0 ? "−" : "±") + num(Math.abs(x)));
export const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
// why an answer ended, where that is worth a word
export const ending = (stop) => ({ length: "cut off", stop: "", answered: "", tool_end: "" })[stop] ?? (stop || "").replaceAll("_", " ");
export const percent = (x) => (x === null || x === undefined ? "–" : `${Number((100 * x).toFixed(1))}%`);

export function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${String(s % 60).padStart(2, "0")}s`;
  return `${Math.floor(s / 3600)}h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}m`;
}

export function ago(seconds) {
  const s = Math.max(0, Date.now() / 1000 - seconds);
  if (s < 90) return "just now";
  if (s < 5400) return `${Math.round(s / 60)} min ago`;
  if (s < 129600) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} days ago`;
}

export function score(run, value) {
  return run.score === "accuracy" ? percent(value) : num(value);
}

// ---- the address of a view: #view?key=value

export function link(view, params = {}) {
  const kept = Object.entries(params).filter(([, v]) => v !== undefined && v !== null && v !== "" && v !== false);
  const query = new URLSearchParams(kept.map(([k, v]) => [k, String(v)]));
  return `#${view}${kept.length ? "?" + query : ""}`;
}

export function here() {
  const [view, query] = location.hash.slice(1).split(/\?(.*)/s);
  return { view: view || "runs", params: Object.fromEntries(new URLSearchParams(query || "")) };
}

export function go(view, params, quietly) {
  const to = link(view, params);
  if (quietly) history.replaceState(history.state, "", to);
  else location.hash = to;
}

// ---- what several views use

export function empty(title, told, command) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", {}, told), command && h("pre", {}, h("code", {}, command)));
}

export function trouble(error, head = "h1") {
  return h("div", { class: "empty trouble", role: "alert" }, h(head, { class: "empty-title" }, "This could not be shown"), h("p", {}, error.message || String(error)), head === "h1" ? h("p", {}, h("a", { class: "button", href: "#runs" }, "Back to the start")) : null);
}

export function select(label, options, value, onchange, props = {}) {
  const node = h("select", { ...props, onchange: () => onchange(node.value) },
    options.map((o) => h("option", { value: o[0], selected: o[0] === value }, o[1])));
  return h("label", { class: "field" }, h("span", {}, label), node);
}

export function input(label, value, onchange, props = {}) {
  const node = h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...props, value: value ?? "", onchange: () => onchange(node.value.trim()) });
  return h("label", { class: "field" }, h("span", {}, label), node);
}

// from and to, as one field
export function between(label, unit, ends, props = {}) {
  return h("div", { class: "field range" }, h("span", { "aria-hidden": "true" }, label), h("div", {}, ends.map(({ value, onchange, hint }, i) => {
    const node = h("input", { type: "text", inputmode: "decimal", autocomplete: "off", placeholder: hint ?? (i ? "most" : "least"), "aria-label": `${unit} ${i ? "to" : "from"}`, ...props, value: value ?? "", oninput: () => node.setCustomValidity(""), onchange: () => {
      const text = node.value.trim().replace("−", "-").replace(/^(-?\d+),(\d+)$/, "$1.$2");
      if (text !== "" && !Number.isFinite(Number(text))) { node.setCustomValidity("a number, like 12 or 0.5"); node.reportValidity(); } else onchange(text);
    } });
    return [i ? h("span", { "aria-hidden": "true" }, "–") : null, node];
  })));
}

// one back, one on
export function stepper(what, told, move, ends = [false, false]) {
  const to = (by, sign, off) => h("button", { type: "button", disabled: off, onclick: () => move(by), "aria-label": `${by < 0 ? "the earlier" : "the next"} ${what}` }, sign);
  return h("div", { class: "stepper", role: "group", "aria-label": what }, to(-1, "‹", ends[0]), h("span", {}, told), to(1, "›", ends[1]));
}

export function spark(values, label) {
  const known = values.filter((v) => v !== null);
  if (known.length < 2) return h("span", { class: "quiet" }, "");
  const low = Math.min(...known), span = Math.max(...known) - low || 1;
  const points = values.map((v, i) => (v === null ? null : `${((i / (values.length - 1)) * 96 + 2).toFixed(1)},${(22 - ((v - low) / span) * 18).toFixed(1)}`)).filter(Boolean);
  return h("svg", { viewBox: "0 0 100 26", class: "spark", role: "img", "aria-label": label },
    h("svg:polyline", { points: points.join(" "), fill: "none", "stroke-width": "2", "stroke-linejoin": "round", "vector-effect": "non-scaling-stroke" }));
}

// several names in one parameter: a comma in a name is no comma between names
export const MOST_TEXT = 4000; // characters that are shown at once
export const MOST_RUNS = 6; // over one another
export const joined = (names) => [...names].map((n) => n.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",");
export const listed = (text) => (text || "").split(",").filter(Boolean).map((n) => n.replaceAll("%2C", ",").replaceAll("%25", "%"));

// the children of a node, those that are there already where they are: focus and what is open in them stays
export function settle(node, children) {
  const wanted = new Set(children);
  for (const old of [...node.children]) if (!wanted.has(old)) old.remove();
  children.forEach((child, i) => { if (node.children[i] !== child) node.insertBefore(child, node.children[i] || null); });
}

// the beginning of a long text, and the rest for whoever asks
export function lengthy(text, props = {}) {
  if (text.length <= MOST_TEXT) return h("p", { class: "text", ...props }, text);
  const at = text.charCodeAt(MOST_TEXT - 1) >> 10 === 0x36 ? MOST_TEXT - 1 : MOST_TEXT; // no half of a pair
  const place = h("p", { class: "text", ...props }, text.slice(0, at), h("span", { class: "quiet" }, " … "));
  const rest = h("button", { type: "button", class: "rest", onclick: () => fill(place, text) }, `${(text.length - at).toLocaleString("en")} more characters`);
  place.append(rest);
  return place;
}

export function once(wait, call) {
  let timer = 0;
  return (...args) => { clearTimeout(timer); timer = setTimeout(() => call(...args), wait); };
}

export function state(run) {
  return h("span", { class: `state ${run.state}` }, h("i", { "aria-hidden": "true" }), run.state);
}

export function rewardParts(answer, weights) {
  const names = Object.keys(answer.rewards || {});
  if (names.length < 2) return null;
  return h("ul", { class: "parts" }, names.map((name) => h("li", {}, h("span", {}, name),
    h("b", {}, num(answer.rewards[name])), weights && weights[name] !== undefined && weights[name] !== 1 ? h("span", { class: "quiet" }, `×${num(weights[name])}`) : null)));
}
