// Chat with the models that `posttrain view --chat` has loaded: the same message to each, every one with its own conversation.
import { h, fill, empty, select } from "./dom.js";
import { chatWith, say } from "./source.js";

const talks = chatWith.map((model) => ({ model, said: [] })); // they outlive a look at another view
let warmth = "1";

export async function chatView(main) {
  const title = h("h1", {}, "Chat");
  if (!talks.length) return fill(main, h("div", { class: "head" }, title), empty("No model to chat with", "Start the page with one run, or with two to have them side by side:", "posttrain view --chat RUN --chat pocket"));
  const places = talks.map(() => h("ol", { class: "talk", "aria-live": "polite" }));
  const text = h("textarea", { id: "message", rows: "3", maxlength: "20000", placeholder: "Enter sends, Shift and Enter begins a line", "aria-label": "Message" });
  const button = h("button", { type: "submit", class: "button primary" }, "Send"), status = h("p", { class: "quiet", role: "status" });

  function draw(k, waits, failed) {
    const { said } = talks[k];
    fill(places[k], said.map((m) => h("li", { class: `by-${m.role}` }, h("b", {}, m.role === "user" ? "you" : talks[k].model), h("p", { class: "text" }, m.content || h("span", { class: "quiet" }, "(nothing)")), m.told ? h("span", { class: "under" }, m.told) : null)),
      waits ? h("li", { class: "quiet" }, "…") : null, failed ? h("li", { class: "bad", role: "alert" }, failed) : null,
      !said.length && !waits && !failed ? h("li", { class: "quiet" }, "Nothing said yet.") : null);
  }

  async function ask(k, message) {
    const talk = talks[k], mine = { role: "user", content: message };
    talk.said.push(mine);
    draw(k, true);
    try {
      const got = await say(talk.model, talk.said.map(({ role, content }) => ({ role, content })), Number(warmth));
      talk.said.push({ role: "assistant", content: got.text, told: `${got.tokens} tokens${got.end === "length" ? ", cut off" : ""}` });
      draw(k);
    } catch (error) {
      talk.said = talk.said.filter((m) => m !== mine);
      draw(k, false, error.message);
      if (!text.value) text.value = message;
    }
  }

  async function send(event) {
    event?.preventDefault();
    const message = text.value.trim();
    if (!message || button.disabled) return;
    text.value = "";
    button.disabled = true;
    fill(status, "waiting for the answer");
    await Promise.all(talks.map((_, k) => ask(k, message)));
    fill(status);
    button.disabled = false;
    text.focus();
  }

  text.addEventListener("keydown", (e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) send(e); });
  const anew = h("button", { type: "button", class: "button", onclick: () => { if (!button.disabled) talks.forEach((talk, k) => { talk.said = []; draw(k); }); } }, "New conversation");
  fill(main, h("div", { class: "head" }, title, status),
    h("div", { class: "side-by-side talks" }, talks.map((talk, k) => h("section", { "aria-label": talk.model }, h("h2", {}, talk.model), places[k]))),
    h("form", { class: "say", onsubmit: send }, text, h("div", { class: "filters" }, select("temperature", ["0", "0.3", "0.7", "1"].map((v) => [v, v]), warmth, (v) => { warmth = v; }), anew, button)));
  talks.forEach((_, k) => draw(k));
}
