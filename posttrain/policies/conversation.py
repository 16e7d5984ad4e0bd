"""Conversations as tokens: what a model can read of them, what a template writes between turns, and which tokens are learned.

Where the chat template marks them itself (`{% generation %}`), its own mask says. Else the conversation is rendered up to each of
the assistant's turns and compared with the whole; a template that rewrites earlier turns is refused, since what would be trained
is then not what the model will read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.core.thinking import CLOSE, OPEN
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Message, Prompt
from posttrain.policies.template import applied, begun, opened, rendered
from posttrain.policies.tool_use import harmless, offered, results

Piece = tuple[list[int], list[int], str]  # ids that are read, ids that are learned, the text of those


def turns_of(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> list[Turn]:
    """One turn per answer of the assistant, each going on in the context of the one before; tools: schemas, for the template."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        pieces = _plain(tokenizer, messages)
    elif marks_itself(template):
        pieces = _marked(tokenizer, messages, tools)
    else:
        pieces = _rendered(tokenizer, messages, tools)
    made = []
    for k, (read, learned, text) in enumerate(pieces):
        turn = Turn.of(
            Observation(torch.tensor(read, dtype=torch.long)), torch.tensor(learned), torch.zeros(len(learned)), text
        )
        turn.continues = k > 0
        made.append(turn)
    return made


def marks_itself(template: Any) -> bool:
    """Whether a chat template says which tokens are the assistant's."""
    return isinstance(template, str) and "{% generation" in template.replace("{%-", "{%")


def _marked(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> list[Piece]:
    """By the template's own mask: every run of marked tokens is a turn."""
    found = applied(
        tokenizer,
        messages,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        add_generation_prompt=False,
        **({"tools": list(tools)} if tools else {}),
    )
    ids, mask = list(found["input_ids"]), list(found["assistant_masks"])
    if not any(mask):
        raise UserError("this model's chat template has a generation block, but marks no token of the conversation")
    pieces: list[Piece] = []
    at = 0
    while at < len(ids) and any(mask[at:]):
        start = next(i for i in range(at, len(ids)) if mask[i])
        end = next((i for i in range(start, len(ids)) if not mask[i]), len(ids))
        pieces.append((ids[at:start], ids[start:end], tokenizer.decode(ids[start:end], skip_special_tokens=True)))
        at = end
    return pieces


def _rendered(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> list[Piece]:
    """By rendering: what stands between the beginning of an answer and its end token is the assistant's."""

    def render(some: Sequence[Message], begin: bool) -> str:
        return rendered(tokenizer, some, answering=begin, tools=tools)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    whole, at, pieces = render(messages, False), 0, []
    for k, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = render(messages[:k], True)
        end = whole.find(tokenizer.eos_token, len(before))
        said = str(message["content"]).strip()
        if message.get("tool_calls"):
            said = whole[len(before) : end].strip()  # as the template writes the calls
        if not whole.startswith(before) or len(before) < at or end < 0 or whole[len(before) : end].strip() != said:
            raise UserError(
                "this model's chat template rewrites earlier turns of a conversation (or leaves out its end token), so not all "
                "of its turns can be learned at once; learn the last one with --task \"FILE(turns='last')\""
            )
        text = whole[len(before) : end]
        pieces.append((ids(whole[at : len(before)]), [*ids(text), tokenizer.eos_token_id], said))
        at = end + len(tokenizer.eos_token)
    return pieces


def _plain(tokenizer: Any, messages: Sequence[Message]) -> list[Piece]:
    """Without a template: the texts line by line, as prompts and later turns are read."""
    pieces: list[Piece] = []
    read: list[str] = []
    for message in messages:
        if message["role"] != "assistant":
            read.append(str(message["content"]))
            continue
        if message.get("tool_calls"):
            raise UserError(
                "a turn of the assistant calls tools, and this model has no chat template to write them with"
            )
        text = "".join(f"\n{x}\n" for x in read) if pieces else "\n".join(read)
        learned = [*tokenizer(str(message["content"]), add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        pieces.append((list(tokenizer(text, add_special_tokens=False)["input_ids"]), learned, str(message["content"])))
        read = []
    return pieces


def only_text(messages: Sequence[Message]) -> list[Message]:
    """The messages with texts for lists of text parts; whatever else is in a message, a language model cannot read."""
    out = []
    for m in messages:
        if not isinstance(m, dict) or "content" not in m:
            raise UserError(f'a message is {{"role": ..., "content": ...}}, got {m!r:.80}')
        if not isinstance(m["content"], list | tuple):
            out.append(m)
            continue
        for part in m["content"]:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                got = part.get("type", "unnamed") if isinstance(part, dict) else type(part).__name__
                raise UserError(
                    f"a message has a part of the kind {got!r}, and this model reads text alone; leave it out, or give a "
                    "policy that perceives it (examples/look.py)"
                )
        out.append({**m, "content": "".join(part["text"] for part in m["content"])})
    return out


def as_read(tokenizer: Any, prompt: Prompt, thinking: bool | None = None) -> tuple[str, str]:
    """A prompt as the policy reads it, up to where it goes on by itself, and the end of that which is the answer's already: a
    thought that the template opens, the prompt's prefill."""
    content, tools = offered(tokenizer, prompt, only_text(prompt.content))
    if not getattr(tokenizer, "chat_template", None):
        text, lead = "\n".join(str(m["content"]) for m in content), ""
    else:
        text = rendered(tokenizer, content, thinking=thinking, tools=tools)
        lead = opened(tokenizer, text, thinking)
    whole = begun(prompt, lead)
    return text[: len(text) - len(lead)] + whole, whole


def between(tokenizer: Any, messages: Sequence[Message], thinking: bool | None = None) -> str:
    """What a chat template writes from the end of an answer to the beginning of the next one, with messages in between.

    The difference of two renderings of a made-up conversation, from its last end-of-answer token on; a template that rewrites
    what came before cannot be continued. Qwen3 writes an empty thought into the last answer alone, and keeps a real one while tools
    are called: so the answer has one there. The messages are an environment's, so no token of theirs controls anything.
    """
    others = [
        m if not isinstance(m["content"], str) else {**m, "content": harmless(tokenizer, m["content"])}
        for m in only_text(messages)
    ]
    messages = results(tokenizer, others)
    if not getattr(tokenizer, "chat_template", None):
        return "".join(f"\n{m['content']}\n" for m in messages)
    for answer in ("answer", f"{OPEN}\nthought\n{CLOSE}\n\nanswer"):
        said = [{"role": "user", "content": "question"}, {"role": "assistant", "content": answer}]
        before = rendered(tokenizer, said, answering=False, thinking=thinking)
        after = rendered(tokenizer, [*said, *messages], thinking=thinking)
        at = before.rfind(tokenizer.eos_token)
        if at >= 0 and after.startswith(before):
            return str(after[at + len(tokenizer.eos_token) :])
    raise UserError("this model's chat template rewrites earlier turns, so a conversation cannot go on in one context")
