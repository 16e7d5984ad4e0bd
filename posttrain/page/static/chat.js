// Chat with the models that `posttrain view --chat` has loaded: the same message to each, every one with its own conversation.
import { h, fill, empty, select, count } from "./dom.js";
import { chatWith, say } from "./source.js";

// they outlive a look at another view; place: where each is drawn now; says: what is being written; stop: ends it
const talks = chatWith.map((model) => ({ model, said: [], says: null, stop: null, failed: "", place: null, live: null }));
let warmth = "1", running = Promise.resolve();

function drawTalk(talk) {
  const { model, said, says, failed, place } = talk;
  const line = (who, text, under) => h("li", { class: `by-${who}` }, h("b", {}, who === "user" ? "you" : model), text, under ? h("span", { class: "under quiet" }, under) : null);
  place.setAttribute("aria-busy", says !== null); // it is read out once it stands
  talk.live = says === null ? null : h("p", { class: "text" }, says || "…");
  fill(place, said.map((m) => line(m.role, h("p", { class: "text" }, m.content || h("span", { class: "quiet" }, "(nothing)")), m.told)),
    talk.live ? line("assistant writes", talk.live) : null, failed ? h("li", { class: "bad", role: "alert" }, failed) : null,
    !said.length && says === null && !failed ? h("li", { class: "quiet" }, "Nothing said yet.") : null);
}

async function askModel(talk, message) {
  const mine = { role: "user", content: message }, control = new AbortController();
  Object.assign(talk, { said: [...talk.said, mine], says: "", failed: "", stop: () => control.abort() });
  drawTalk(talk);
  try {
    const asked = { model: talk.model, messages: talk.said.map(({ role, content }) => ({ role, content })), temperature: Number(warmth) };
    const got = await say(asked, (text) => { talk.says += text; fill(talk.live, talk.says); }, control.signal);
    const told = [got.tokens === null ? "" : count(got.tokens, "token"), { length: "cut off", stopped: "stopped by you" }[got.end] || ""].filter(Boolean).join(", ");
    if (got.end === "stopped" && !talk.says) talk.said = talk.said.filter((m) => m !== mine);
    else talk.said.push({ role: "assistant", content: talk.says, told });
  } catch (error) {
    talk.said = talk.said.filter((m) => m !== mine);
    talk.failed = error.message;
  }
  talk.says = talk.stop = null;
  drawTalk(talk);
}

export async function chatView(main) {
  const title = h("h1", {}, "Chat");
  if (!talks.length) return fill(main, h("div", { class: "head" }, title), empty("No model to chat with", "Start the page with one run, or with two to have them side by side:", "posttrain view --chat RUN --chat pocket"));
  for (const talk of talks) talk.place = h("ol", { class: "talk", "aria-live": "polite" });
  const text = h("textarea", { id: "message", rows: "3", maxlength: "20000", placeholder: "Enter sends, Shift and Enter begins a line", "aria-label": "Message" });
  const waiting = () => talks.some((talk) => talk.says !== null);
  const stopButton = h("button", { type: "button", class: "button", onclick: () => { for (const talk of talks) talk.stop?.(); } }, "Stop"), sendButton = h("button", { type: "submit", class: "button primary" }, "Send");
  const buttons = () => { stopButton.hidden = !waiting(); sendButton.disabled = waiting(); };

  async function send(event) {
    event?.preventDefault();
    const message = text.value.trim();
    if (!message || waiting()) return;
    text.value = "";
    running = Promise.all(talks.map((talk) => askModel(talk, message)));
    buttons();
    await running;
    if (talks.some((talk) => talk.failed) && !text.value) text.value = message;
    buttons();
    if (text.isConnected) text.focus();
  }

  text.addEventListener("keydown", (e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) send(e); else if (e.key === "Escape") { for (const talk of talks) talk.stop?.(); } });
  const anew = () => { if (!waiting()) for (const talk of talks) { Object.assign(talk, { said: [], failed: "" }); drawTalk(talk); } };
  fill(main, h("div", { class: "head" }, title),
    h("div", { class: "side-by-side talks" }, talks.map((talk) => h("section", { "aria-label": talk.model }, h("h2", {}, talk.model), talk.place))),
    h("form", { class: "say", onsubmit: send }, text, h("div", { class: "filters" }, select("temperature", ["0", "0.3", "0.7", "1"].map((v) => [v, v]), warmth, (v) => { warmth = v; }),
      h("button", { type: "button", class: "button", onclick: anew }, "New conversation"), stopButton, sendButton)));
  talks.forEach(drawTalk);
  buttons();
  running.then(buttons); // where an answer is being written since another look at this view
}
