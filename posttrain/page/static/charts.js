// Charts: lines with bands of least and most, intervals, stacked seconds, a scatter with a brush. uPlot draws; colours come from the page.
import { h, num, fill, percent } from "./dom.js";

const open = new Set();
const sized = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (contentRect.width < 40) continue;
    if (!target.plot) { target.again(); open.add(target); } else if (target.plot.over) target.plot.setSize({ width: Math.floor(contentRect.width), height: target.plot.height });
  }
});

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function forgetCharts() {
  for (const place of open) { sized.unobserve(place); place.plot.destroy(); }
  open.clear();
}

export function recolour() {
  for (const place of open) { const { plot, again } = place; plot.destroy(); again(); }
}

export function smooth(values, reach) {
  if (!reach) return values;
  return values.map((v, i) => {
    if (v === null) return null;
    let sum = 0, n = 0;
    for (let k = Math.max(0, i - reach); k <= Math.min(values.length - 1, i + reach); k++) if (values[k] !== null) { sum += values[k]; n++; }
    return sum / n;
  });
}

const FAR = 3; // times the usual range that a value lies outside of it
const MANY = 60; // intervals that are drawn one by one; more are a band
const WHOLE = [...Array(16).keys()].flatMap((n) => [1, 2, 5].map((k) => k * 10 ** n)); // there is no step and a half
const DASHES = [[], [], [], [7, 4], [2, 3], [9, 3, 2, 3]];
const tint = (line, k) => line.tint || (k % 6) + 1; // which of the six colours
const faded = (c, alpha) => `color-mix(in srgb, ${c} ${alpha}%, transparent)`;
const short = (u, splits) => { // in one notation along an axis
  const most = Math.max(...splits.map(Math.abs));
  return splits.map((v) => (Math.abs(v) >= 1e6 ? `${num(v / 1e6)}M` : Math.abs(v) >= 1e4 ? `${num(v / 1e3)}k` : v && most < 1e-3 ? num(v, 3, 1e-3) : num(v)));
};

// lines: [{label, x, mean, low, high, colour?}]; points: [{x, value, low, high}]; marks: [{x, told, kind}]; edges: [x]
export function lines(spec) {
  const place = h("div", { class: "plot", tabindex: "0", role: "slider", "aria-label": spec.title, "aria-valuenow": "0", "aria-valuetext": "no values yet", onkeydown: (e) => byKey(e, place, spec) });
  const read = h("dl", { class: "read" });
  const far = h("button", { type: "button", class: "far", hidden: true, onclick: () => { spec.all = !spec.all; if (place.plot) place.plot.destroy(); place.again(); } });
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, spec.title), read), place, far);
  place.spec = spec;
  place.again = () => { spec.limits = spec.all || spec.stacked ? null : typical(spec.lines); draw(place, read, spec); beyond(far, spec, place); if (document.activeElement === place) point(place); };
  place.addEventListener("focus", () => point(place));
  place.addEventListener("blur", () => place.plot?.setCursor?.({ left: -10, top: -10 }, true, true));
  sized.observe(place);
  figure.update = (next) => {
    Object.assign(spec, next);
    describe(read, spec, null);
    if (!place.plot) return;
    const zoom = zoomed(place.plot);
    place.plot.destroy();
    place.again();
    if (zoom && place.plot.setScale) place.plot.setScale("x", zoom);
  };
  describe(read, spec, null);
  return figure;
}

// the value under the keyboard: shown as under the mouse, here and in the charts beside it
function point(place) {
  const u = place.plot, xs = u?.data?.[0];
  if (!xs?.length) return;
  place.at = Math.max(0, Math.min(xs.length - 1, place.at ?? xs.length - 1));
  u.setCursor({ left: u.valToPos(xs[place.at], "x"), top: u.over.clientHeight / 2 }, true, true);
  place.setAttribute("aria-valuemin", xs[0]);
  place.setAttribute("aria-valuemax", xs.at(-1));
  place.setAttribute("aria-valuenow", xs[place.at]);
  place.setAttribute("aria-valuetext", [...place.closest("figure").querySelectorAll(".read > div")].map((d) => [...d.children].map((n) => n.textContent).join(" ")).concat(marked(place.spec, xs[place.at]).map((m) => `${m.kind}: ${m.message}`), `${u.unit} ${num(xs[place.at], 5)}`).reverse().join(", "));
}

// arrows walk, Enter opens, + and - zoom around the place, 0 shows all of it
function byKey(e, place, spec) {
  const u = place.plot, xs = u?.data?.[0], by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -1e9, End: 1e9 }[e.key];
  if (!xs?.length || e.ctrlKey || e.metaKey || e.altKey) return;
  if (by !== undefined) { place.at = (place.at ?? xs.length - 1) + by; point(place); }
  else if (e.key === "Enter" && spec.onpick) spec.onpick(xs[place.at ?? xs.length - 1]);
  else if ("+=-0".includes(e.key) && xs.length > 1) {
    const { min, max } = u.scales.x, here = xs[place.at ?? 0], reach = ((max - min) / 2) * (e.key === "-" ? 2 : 0.5);
    if (e.key === "0" || reach * 2 >= xs.at(-1) - xs[0]) u.setScale("x", { min: xs[0], max: xs.at(-1) });
    else { const low = Math.max(xs[0], Math.min(here - reach, xs.at(-1) - 2 * reach)); u.setScale("x", { min: low, max: low + 2 * reach }); }
    requestAnimationFrame(() => place.plot === u && point(place));
  } else return;
  e.preventDefault();
  e.stopPropagation();
}

// where a person has zoomed in: the ends of what is seen
function zoomed(plot) {
  const xs = plot.data?.[0], at = plot.scales?.x;
  return xs?.length > 1 && at && (at.min > xs[0] || at.max < xs.at(-1)) ? { min: at.min, max: at.max } : null;
}

// the ends of what is drawn, where a few values lie so far out that nothing else could be read: 1% to 99% of them; null: all of it
export function typical(lines_) {
  const values = lines_.flatMap((l) => [l.mean, l.low, l.high].flatMap((some) => some || [])).filter((v) => v !== null).sort((a, b) => a - b);
  if (values.length < 20) return null;
  const low = values[Math.ceil(0.01 * (values.length - 1))], high = values[Math.floor(0.99 * (values.length - 1))], far = FAR * (high - low);
  if (!far || (values.at(-1) - high <= far && low - values[0] <= far)) return null;
  return { low: low - values[0] > far ? low : values[0], high: values.at(-1) - high > far ? high : values.at(-1), least: values[0], most: values.at(-1) };
}

// what lies beyond is said, and a click shows it
function beyond(button, spec) {
  const { limits } = spec;
  button.hidden = !limits && !spec.all;
  const ends = limits ? [limits.least < limits.low ? `down to ${num(limits.least)}` : "", limits.most > limits.high ? `up to ${num(limits.most)}` : ""].filter(Boolean).join(", ") : "";
  fill(button, limits ? `${ends} (▴): show all` : "without the extremes");
}

function describe(read, spec, index, data) {
  fill(read, spec.lines.map((line, k) => {
    const known = line.mean.filter((v) => v !== null);
    const now = index === null || !data ? undefined : spec.stacked ? line.mean[index] : data[line.at][index];
    const text = !known.length ? "no values" : index === null ? (spec.stacked ? num(known.at(-1)) : `${num(known[0])} → ${num(known.at(-1))}`) : now === undefined || now === null ? "–" : num(now);
    return h("div", {}, h("dt", { class: `s${tint(line, k)}` }, line.label), h("dd", {}, text));
  }), (spec.points || []).map((set, k) => {
    const p = index !== null && data ? set.all.find((q) => q.x === data[0][index]) : null, shown = spec.percent ? percent : num;
    const text = p ? `${shown(p.value)}${p.low === null ? "" : ` (${shown(p.low).replace("%", "")}–${shown(p.high)})`}` : set.all.length ? `${shown(set.all[0].value)} → ${shown(set.all.at(-1).value)}` : "no values";
    return h("div", {}, h("dt", { class: `s${(k % 6) + 1}` }, set.label), h("dd", {}, text));
  }));
}

function draw(place, read, spec) {
  const tables = [], series = [{}], bands = [];
  spec.lines.forEach((line, k) => {
    const c = colour(`s${tint(line, k)}`), kept = spec.smoothing || 0;
    const wide = line.high && line.high.some((v, i) => v !== line.low[i]);
    if (spec.stacked) {
      tables.push([line.x, line.total]);
      line.at = series.length;
      series.push({ label: line.label, stroke: c, fill: `color-mix(in srgb, ${c} 72%, ${colour("card")})`, width: 1, points: { show: false } });
      return;
    }
    const columns = [line.x, smooth(line.mean, kept)];
    if (wide || kept) columns.push(wide ? line.high : line.mean, wide ? line.low : line.mean);
    tables.push(columns);
    line.at = series.length;
    const few = line.mean.filter((v) => v !== null).length < 40;
    series.push({ label: line.label, stroke: c, width: 1.8, dash: DASHES[k % 6], spanGaps: false, points: { show: few, size: 4, fill: c } });
    if (wide) {
      series.push({ stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } });
      bands.push({ series: [line.at + 1, line.at + 2], fill: faded(c, 16) });
    } else if (kept) {
      series.push({ stroke: faded(c, 30), width: 1, points: { show: false } }, { stroke: "transparent", width: 0, points: { show: false } });
    }
  });
  (spec.points || []).forEach((set, k) => {
    const c = colour(`s${(k % 6) + 1}`);
    tables.push([set.all.map((p) => p.x), set.all.map((p) => p.value)]);
    series.push({ label: set.label, stroke: c, width: 1.8, dash: DASHES[k % 6], spanGaps: true, points: { show: set.all.length <= MANY, size: 7, fill: c } });
  });
  if (!tables.length || !tables.some((t) => t[0].length)) { fill(place, h("p", { class: "quiet pad" }, "no values yet")); place.plot = { destroy() { place.replaceChildren(); }, setSize() {} }; return; }
  const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
  const text = colour("quiet"), grid = { stroke: colour("line"), width: 1 };
  const font = "12px system-ui, sans-serif";
  const options = {
    width: Math.max(200, Math.floor(place.clientWidth || 400)), height: spec.height || 190, series, bands,
    padding: [10, 12, 0, 0], legend: { show: false },
    cursor: { sync: { key: spec.sync || "run" }, drag: { x: true, y: false }, points: { size: 7 } },
    scales: { x: { time: false }, y: { range: (u, low, high) => range(low, high, spec) } },
    axes: [
      { stroke: text, grid: { show: false }, ticks: grid, font, values: short, size: 34, space: 56, ...(spec.whole ? { incrs: WHOLE } : {}) },
      { stroke: text, grid, ticks: { show: false }, font, values: spec.percent ? (u, splits) => splits.map(percent) : short, size: 54, space: 28 },
    ],
    hooks: {
      setCursor: [(u) => { steady(read.parentElement, u); describe(read, spec, u.cursor.idx ?? null, u.data); flag(u, spec); }],
      drawClear: [(u) => background(u, spec)],
      draw: [(u) => foreground(u, spec)],
      ready: [(u) => spec.onpick && picks(u, spec)],
    },
  };
  place.plot = new uPlot(options, data, place);
  place.plot.over.setAttribute("aria-hidden", "true");
  place.plot.unit = spec.unit || "step";
  place.plot.flag = h("span", { class: "at", hidden: true });
  place.plot.over.append(place.plot.flag);
  const xs = data[0];
  place.setAttribute("aria-valuemin", xs[0]);
  place.setAttribute("aria-valuemax", xs.at(-1));
  place.setAttribute("aria-valuenow", xs.at(-1));
  place.setAttribute("aria-valuetext", read.textContent);
}

// where along the axis one is
function flag(u, spec) {
  const at = u.cursor.idx, on = at !== null && at !== undefined && u.cursor.left >= 0;
  if (!u.flag) return;
  u.flag.hidden = !on;
  if (!on) return;
  const x = u.data[0][at], left = u.valToPos(x, "x"), share = left / u.over.clientWidth, kinds = u.root.parentElement?.matches(":hover, :focus") ? [...new Set(marked(spec, x).map((m) => m.kind))] : [];
  fill(u.flag, num(x, 5), kinds.map((kind) => ` · ${kind}`));
  u.flag.style.left = `${left}px`;
  u.flag.style.transform = `translateX(${!kinds.length ? -50 : -Math.round(100 * Math.max(0, Math.min(1, share)))}%)`;
}

// a caption that takes fewer lines with one value than with two does not move the page
function steady(caption, u) {
  if (u.cursor.idx !== null && u.cursor.idx !== undefined && !caption.style.minHeight) caption.style.minHeight = `${caption.offsetHeight}px`;
}

const marked = (spec, x) => (spec.marks || []).filter((m) => m.x === x);

function picks(u, spec) {
  let down = 0, touched = false, told = null;
  u.over.addEventListener("pointerdown", (e) => { touched = e.pointerType === "touch"; });
  u.over.addEventListener("mousedown", (e) => { down = e.clientX; });
  u.over.addEventListener("click", (e) => {
    const i = u.cursor.idx;
    if (i === null || i === undefined || Math.abs(e.clientX - down) >= 4) return;
    if (touched && told !== i) { told = i; return; } // a finger does not hover: the first touch tells the values, the second opens
    spec.onpick(u.data[0][i]);
  });
}

function range(low, high, spec) {
  if (spec.limits) { low = Math.max(low, spec.limits.low); high = Math.min(high, spec.limits.high); }
  for (const p of (spec.points || []).flatMap((set) => set.all)) { if (p.low !== null) low = Math.min(low ?? p.low, p.low); if (p.high !== null) high = Math.max(high ?? p.high, p.high); }
  if (low === null || low === undefined || low === Infinity) return [0, 1];
  if (low === 0 && high === 0) return [0, 1];
  if (spec.stacked || spec.zero) low = Math.min(0, low);
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [spec.stacked || (spec.zero && low === 0) ? 0 : low - room, high + room];
}

function background(u, spec) {
  const { ctx, bbox } = u;
  ctx.save();
  for (const x of spec.edges || []) stroke(u, x, colour("line-strong"), []);
  for (const w of spec.stretches || []) {
    const a = u.valToPos(w[0], "x", true), b = u.valToPos(w[1], "x", true);
    ctx.fillStyle = faded(colour("warn"), 14);
    ctx.fillRect(Math.max(a, bbox.left), bbox.top, Math.max(2, Math.min(b, bbox.left + bbox.width) - Math.max(a, bbox.left)), bbox.height);
  }
  ctx.restore();
}

function foreground(u, spec) {
  const { ctx, bbox } = u;
  ctx.save();
  for (const mark of [...(spec.marks || [])].sort((a, b) => (b.kind === "checkpoint") - (a.kind === "checkpoint"))) { // what went wrong lies on top
    const x = u.valToPos(mark.x, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.fillStyle = colour(mark.kind === "checkpoint" ? "quiet" : "warn");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top + bbox.height); ctx.lineTo(x - 4 * devicePixelRatio, bbox.top + bbox.height + 6 * devicePixelRatio); ctx.lineTo(x + 4 * devicePixelRatio, bbox.top + bbox.height + 6 * devicePixelRatio);
    ctx.fill();
  }
  for (const line of spec.limits ? spec.lines : []) { // the x of values that are not on the picture
    line.x.forEach((x, i) => {
      const above = Math.max(line.mean[i] ?? -Infinity, line.high?.[i] ?? -Infinity) > spec.limits.high, under = Math.min(line.mean[i] ?? Infinity, line.low?.[i] ?? Infinity) < spec.limits.low;
      const at = u.valToPos(x, "x", true);
      if ((!above && !under) || at < bbox.left || at > bbox.left + bbox.width) return;
      const y = above ? bbox.top : bbox.top + bbox.height, tip = (above ? -6 : 6) * devicePixelRatio;
      ctx.fillStyle = colour("warn");
      ctx.beginPath(); ctx.moveTo(at, y + tip); ctx.lineTo(at - 4 * devicePixelRatio, y); ctx.lineTo(at + 4 * devicePixelRatio, y); ctx.fill();
    });
  }
  for (const [k, set] of (spec.points || []).entries()) {
    const known = set.all.filter((p) => p.low !== null && p.high !== null);
    if (known.length > MANY) {
      const at = (p, key) => [u.valToPos(p.x, "x", true), u.valToPos(p[key], "y", true)];
      ctx.fillStyle = faded(colour(`s${(k % 6) + 1}`), 18);
      ctx.beginPath();
      for (const [x, y] of [...known.map((p) => at(p, "high")), ...[...known].reverse().map((p) => at(p, "low"))]) ctx.lineTo(x, y);
      ctx.fill();
      continue;
    }
    ctx.strokeStyle = colour(`s${(k % 6) + 1}`); ctx.lineWidth = 1.5 * devicePixelRatio;
    for (const p of set.all) {
      if (p.low === null || p.high === null) continue;
      const x = u.valToPos(p.x, "x", true), low = u.valToPos(p.low, "y", true), high = u.valToPos(p.high, "y", true), cap = 4 * devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(x, low); ctx.lineTo(x, high); ctx.moveTo(x - cap, low); ctx.lineTo(x + cap, low); ctx.moveTo(x - cap, high); ctx.lineTo(x + cap, high);
      ctx.stroke();
    }
  }
  ctx.restore();
}

function stroke(u, x, c, dash) {
  const at = u.valToPos(x, "x", true), { ctx, bbox } = u;
  if (at < bbox.left || at > bbox.left + bbox.width) return;
  ctx.strokeStyle = c; ctx.lineWidth = devicePixelRatio; ctx.setLineDash(dash);
  ctx.beginPath(); ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); ctx.stroke();
}

// what each stage adds to those under it, the sum first, so that later ones are drawn over it
export function stacked(parts) {
  const sums = parts[0].mean.map(() => 0);
  const out = parts.map((part) => ({ ...part, total: part.mean.map((v, i) => (sums[i] += v || 0)) }));
  return out.reverse();
}

// a number from 0 to 1 for each place, the same whenever it is drawn
function scattered(i, salt) {
  let n = Math.imul(i + 1, 0x9e3779b1) ^ Math.imul(salt, 0x85ebca6b);
  n = Math.imul(n ^ (n >>> 15), 0x2c1b3c6d);
  n = Math.imul(n ^ (n >>> 13), 0x297a2d39);
  return ((n ^ (n >>> 16)) >>> 0) / 2 ** 32;
}

// points: [[step, group, sample, reward, length]]; onbrush({low, high, shortest, longest})
export function scatter(points, onbrush, asked = {}) {
  const place = h("div", { class: "plot" });
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, "reward against length"),
    h("p", { class: "quiet" }, points.length ? "drag over a part of it, or type its ends above, to see those answers" : "no answers")), place);
  place.again = () => {
    const sorted = [...points].sort((a, b) => a[4] - b[4]);
    const steps = points.map((p) => p[0]), low = Math.min(...steps), span = Math.max(...steps) - low || 1;
    const data = [sorted.map((p) => p[4]), sorted.map((p) => p[3])];
    const few = new Set(points.map((p) => p[3])).size <= 6;
    const paint = (u) => {
      const { ctx } = u, c = colour("s1"), size = 2.6 * devicePixelRatio;
      ctx.save();
      ctx.beginPath(); ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height); ctx.clip();
      for (const [i, p] of sorted.entries()) {
        const apart = (salt, wide) => (scattered(i, salt) - 0.5) * wide * devicePixelRatio; // or equal answers would hide one another
        ctx.fillStyle = faded(c, 18 + Math.round((60 * (p[0] - low)) / span));
        ctx.beginPath(); ctx.arc(u.valToPos(p[4], "x", true) + apart(1, 6), u.valToPos(p[3], "y", true) + apart(2, few ? 14 : 2), size, 0, 7); ctx.fill();
      }
      if (["low", "high", "shortest", "longest"].some((k) => asked[k])) { // what is being looked at
        const end = (k, scale, other) => (asked[k] ? u.valToPos(Number(asked[k]), scale, true) : other), { bbox } = u;
        const left = end("shortest", "x", bbox.left), right = end("longest", "x", bbox.left + bbox.width), top = end("high", "y", bbox.top), foot = end("low", "y", bbox.top + bbox.height);
        ctx.strokeStyle = colour("text"); ctx.lineWidth = devicePixelRatio; ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
        ctx.strokeRect(left - 3, top - 3, right - left + 6, foot - top + 6);
      }
      ctx.restore();
    };
    const text = colour("quiet"), grid = { stroke: colour("line"), width: 1 }, font = "12px system-ui, sans-serif";
    place.plot = new uPlot({
      width: Math.max(200, Math.floor(place.clientWidth || 400)), height: 220, padding: [10, 12, 0, 0], legend: { show: false },
      cursor: { drag: { x: true, y: true, setScale: false }, points: { show: false } },
      scales: { x: { time: false, range: (u, a, b) => [a - (b - a || 2) * 0.04, b + (b - a || 2) * 0.04] }, y: { range: (u, a, b) => [a - (b - a || 1) * 0.12, b + (b - a || 1) * 0.12] } },
      series: [{}, { paths: () => null, points: { show: false }, stroke: colour("s1") }],
      axes: [{ stroke: text, grid: { show: false }, ticks: grid, font, size: 44, incrs: WHOLE, label: "tokens", labelSize: 14, labelFont: font, values: short }, { stroke: text, grid, ticks: { show: false }, font, size: 54, values: short }],
      hooks: { draw: [paint], setSelect: [(u) => {
        const { left, top, width, height } = u.select;
        if (width < 3 && height < 3) return;
        onbrush({ shortest: Math.ceil(u.posToVal(left, "x")), longest: Math.floor(u.posToVal(left + width, "x")),
          low: Number(u.posToVal(top + height, "y").toPrecision(4)), high: Number(u.posToVal(top, "y").toPrecision(4)) });
      }] },
    }, data, place);
    place.plot.over.setAttribute("aria-hidden", "true");
  };
  if (points.length) sized.observe(place);
  return figure;
}
