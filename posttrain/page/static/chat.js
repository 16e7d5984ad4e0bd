// Chat with the models that `posttrain view --chat` has loaded: the same message to each, every one with its own conversation.
import { h, fill, empty, select } from "./dom.js";
import { chatWith, say } from "./source.js";

// they outlive a look at another view; place: where each is drawn now
const talks = chatWith.map((model) => ({ model, said: [], waits: false, failed: "", place: null }));
let warmth = "1";

function drawTalk({ model, said, waits, failed, place }) {
  fill(place, said.map((m) => h("li", { class: `by-${m.role}` }, h("b", {}, m.role === "user" ? "you" : model), h("p", { class: "text" }, m.content || h("span", { class: "quiet" }, "(nothing)")), m.told ? h("span", { class: "under" }, m.told) : null)),
    waits ? h("li", { class: "quiet" }, "…") : null, failed ? h("li", { class: "bad", role: "alert" }, failed) : null,
    !said.length && !waits && !failed ? h("li", { class: "quiet" }, "Nothing said yet.") : null);
}

async function askModel(talk, message) {
  const mine = { role: "user", content: message };
  Object.assign(talk, { said: [...talk.said, mine], waits: true, failed: "" });
  drawTalk(talk);
  try {
    const got = await say(talk.model, talk.said.map(({ role, content }) => ({ role, content })), Number(warmth));
    talk.said.push({ role: "assistant", content: got.text, told: `${got.tokens} tokens${got.end === "length" ? ", cut off" : ""}` });
  } catch (error) {
    talk.said = talk.said.filter((m) => m !== mine);
    talk.failed = error.message;
  }
  talk.waits = false;
  drawTalk(talk);
}

export async function chatView(main) {
  const title = h("h1", {}, "Chat");
  if (!talks.length) return fill(main, h("div", { class: "head" }, title), empty("No model to chat with", "Start the page with one run, or with two to have them side by side:", "posttrain view --chat RUN --chat pocket"));
  for (const talk of talks) talk.place = h("ol", { class: "talk", "aria-live": "polite" });
  const text = h("textarea", { id: "message", rows: "3", maxlength: "20000", placeholder: "Enter sends, Shift and Enter begins a line", "aria-label": "Message" });
  const waiting = () => talks.some((talk) => talk.waits);

  async function send(event) {
    event?.preventDefault();
    const message = text.value.trim();
    if (!message || waiting()) return;
    text.value = "";
    await Promise.all(talks.map((talk) => askModel(talk, message)));
    if (talks.some((talk) => talk.failed) && !text.value) text.value = message;
    if (text.isConnected) text.focus();
  }

  text.addEventListener("keydown", (e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) send(e); });
  const anew = () => { if (!waiting()) for (const talk of talks) { Object.assign(talk, { said: [], failed: "" }); drawTalk(talk); } };
  fill(main, h("div", { class: "head" }, title),
    h("div", { class: "side-by-side talks" }, talks.map((talk) => h("section", { "aria-label": talk.model }, h("h2", {}, talk.model), talk.place))),
    h("form", { class: "say", onsubmit: send }, text, h("div", { class: "filters" }, select("temperature", ["0", "0.3", "0.7", "1"].map((v) => [v, v]), warmth, (v) => { warmth = v; }),
      h("button", { type: "button", class: "button", onclick: anew }, "New conversation"), h("button", { type: "submit", class: "button primary" }, "Send"))));
  talks.forEach(drawTalk);
}
