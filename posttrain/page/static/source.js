// Where the page's data comes from: the API of `posttrain view`, or the report's own file.

const embedded = document.getElementById("data");
const file = embedded ? JSON.parse(embedded.textContent) : null;
export const isReport = file !== null;
export const reportInfo = file ? file.about : null;

const chatMeta = document.querySelector("meta[name=posttrain-chat]");
export const chatWith = chatMeta ? JSON.parse(chatMeta.dataset.models) : []; // models that may be talked to

export class Failed extends Error {}

export async function get(address, params = {}) {
  const kept = Object.entries(params).filter(([, v]) => v !== undefined && v !== null && v !== "" && v !== false);
  if (file) return fromFile(address, Object.fromEntries(kept));
  let reply;
  try {
    reply = await fetch(`/api/${address}?${new URLSearchParams(kept.map(([k, v]) => [k, v === true ? "1" : String(v)]))}`);
  } catch {
    throw new Failed("The page has lost its server: posttrain view was closed, or this machine cannot reach it. Start it again and reload.");
  }
  const body = await reply.json().catch(() => ({ error: `the server answered with ${reply.status}` }));
  if (!reply.ok) throw new Failed(body.error);
  return body;
}

// the answer of a model as it is written: hear(text) for each piece; signal ends it; returns how it ended
export async function say(asked, hear, signal) {
  let reply;
  try {
    reply = await fetch("/chat", { method: "POST", headers: { "Content-Type": "application/json", "X-Posttrain-Token": chatMeta.content }, body: JSON.stringify(asked), signal });
  } catch (error) {
    if (signal.aborted) return { end: "stopped", tokens: null };
    throw new Failed("The page has lost its server: posttrain view was closed. Start it again and reload.");
  }
  if (!reply.ok) throw new Failed((await reply.json().catch(() => ({}))).error || `the server answered with ${reply.status}`);
  const pieces = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", ended = null;
  try {
    for (let got = await pieces.read(); !got.done; got = await pieces.read()) {
      const events = (rest + got.value).split("\n\n");
      rest = events.pop();
      for (const event of events.map((e) => JSON.parse(e.replace(/^data: /, "")))) {
        if (event.error) throw new Failed(event.error);
        if (event.end) ended = event;
        else hear(event.text);
      }
    }
  } catch (error) {
    if (signal.aborted) return { end: "stopped", tokens: null };
    throw error instanceof Failed ? error : new Failed("The answer broke off: posttrain view was closed, or the model's server was.");
  }
  if (!ended) throw new Failed("The answer broke off: posttrain view was closed, or the model's server was.");
  return ended;
}

function streamIs(how) {
  document.body.dataset.stream = how;
  const place = document.getElementById("stream"), told = how === "live" ? "live" : "not connected: what is shown may be old";
  if (place) { place.title = told; place.querySelector(".sr").textContent = told; }
}

// onchange(news, again): again says that the stream had been away, so that more may have changed than it tells
export function follow(run, onchange) {
  if (file) return () => {};
  let stream = null, again = false;
  const listen = () => { // browsers keep six connections to a server: a tab that nobody sees needs none
    again = again || stream !== null;
    stream?.close();
    stream = document.hidden ? null : new EventSource(`/events?run=${encodeURIComponent(run)}`);
    if (!stream) return;
    stream.onmessage = (event) => { streamIs("live"); onchange(JSON.parse(event.data), again); again = false; };
    stream.onopen = () => streamIs("live");
    stream.onerror = () => { again = true; streamIs("lost"); };
  };
  listen();
  document.addEventListener("visibilitychange", listen);
  return () => { document.removeEventListener("visibilitychange", listen); stream?.close(); };
}

// ---- a report holds what was asked for when it was written; answers are filtered here as the server filters them

function fromFile(address, params) {
  if (address === "rollouts") return answers(params);
  const key = `${address}?${new URLSearchParams(Object.entries(params).filter(([k]) => !["points", "after"].includes(k)).sort().map(([k, v]) => [k, String(v)]))}`;
  if (key in file.data) return file.data[key];
  if (address === "metrics") return someCurves(params);
  throw new Failed(["group", "tokens", "episode"].includes(address) ? "This answer is not in the report, which keeps the best, the worst, the first and the last ones. posttrain view shows them all." : "This is not in the report; posttrain view shows it.");
}

function someCurves(params) {
  const all = file.data[`metrics?${new URLSearchParams({ run: params.run, x: params.x || "step" })}`] || file.data[`metrics?${new URLSearchParams({ run: params.run })}`];
  const names = (params.names || "").split(",").filter(Boolean);
  return { ...all, curves: Object.fromEntries(Object.entries(all.curves).filter(([k]) => !names.length || names.includes(k))) };
}

function answers(p) {
  const text = (p.text || "").toLowerCase(), at = Number(p.at ? JSON.parse(p.at)[0] : 0), limit = Number(p.limit || 50);
  const inside = (x, low, high) => (low === undefined || (x !== null && x >= Number(low))) && (high === undefined || (x !== null && x <= Number(high)));
  const kept = file.answers.filter((r) => r.phase === p.phase && inside(r.step, p.first, p.last) && inside(r.total, p.low, p.high)
    && inside(r.length, p.shortest, p.longest) && (!p.prompt || r.prompt_id === p.prompt) && (!p.stop || r.stop === p.stop) && (!p.failed || r.failed) && (!p.role || r.role === p.role)
    && (!p.component || inside(r.rewards[p.component] ?? null, p.component_low, p.component_high))
    && (!text || `${r.prompt || ""}\n${r.text || ""}`.toLowerCase().includes(text)));
  const place = (a) => a.step * 1e8 + a.group_index * 1e4 + a.sample_index;
  const order = { best: (a, b) => b.total - a.total, worst: (a, b) => a.total - b.total, newest: (a, b) => place(b) - place(a) }[p.order] || ((a, b) => place(a) - place(b));
  const ranked = p.order === "best" || p.order === "worst" ? kept.filter((r) => r.total !== null) : kept;
  const rows = ranked.sort(order).slice(at, at + limit);
  return { rows, next: at + limit < ranked.length ? [at + limit] : null, looked: file.answers.length, complete: true };
}
