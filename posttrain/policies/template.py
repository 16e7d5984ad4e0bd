"""Chat templates are programs of a stranger: rendered in transformers' sandbox, with limits on time and size tried at loading."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.thinking import OPEN
from posttrain.core.types import Message, Prompt
from posttrain.models.folder import one_line

_SECONDS = 10.0  # for one short question
_CHARACTERS = 1_000_000  # that a template may make of it


def rendered(
    tokenizer: Any, messages: Sequence[Message], answering: bool = True, thinking: bool | None = None,
    tools: Sequence[Any] | None = None,
) -> str:  # fmt: skip
    """Messages as the template writes them; whatever goes wrong in it is one sentence. thinking: what a template that has the
    choice (`enable_thinking`) is told; None leaves it its own way. tools: schemas, for a template that takes them."""
    asked: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
    asked |= {"tools": list(tools)} if tools else {}
    text = applied(tokenizer, messages, tokenize=False, add_generation_prompt=answering, **asked)
    if not isinstance(text, str):
        raise UserError(f"the model's chat template gave a {type(text).__name__}, expected text")
    return text


def applied(tokenizer: Any, messages: Sequence[Message], **how: Any) -> Any:
    """What `apply_chat_template` gives; whatever goes wrong in it is one sentence."""
    try:
        return tokenizer.apply_chat_template(list(messages), **how)
    except UserError:
        raise
    except Exception as error:  # jinja raises its own, and whatever the template's expressions do
        roles = ", ".join(str(m.get("role")) for m in messages)
        raise UserError(
            f"the model's chat template cannot write this conversation ({roles}): {type(error).__name__}: {one_line(error)}"
        ) from None


def opened(tokenizer: Any, text: str, thinking: bool | None = None) -> str:
    """The end of a rendered prompt that already belongs to the answer: a thought that the template opens for the assistant, and
    closes if it is told not to think; empty for most templates."""
    if not getattr(tokenizer, "chat_template", None):
        return ""
    tail = answer_begins(tokenizer, thinking)
    at = tail.find(OPEN)
    return tail[at:] if at >= 0 and text.endswith(tail) else ""


def answer_begins(tokenizer: Any, thinking: bool | None = None) -> str:
    """What the template writes after the last message so that the assistant answers; worked out once for a template."""
    made: dict[Any, str] = tokenizer.__dict__.setdefault("_posttrain_answer_begins", {})
    key = (str(tokenizer.chat_template), thinking)
    if key not in made:
        said = [{"role": "user", "content": "question"}]
        before, after = (rendered(tokenizer, said, answering, thinking) for answering in (False, True))
        made[key] = after[len(before) :] if after.startswith(before) else ""
    return made[key]


def begun(prompt: Prompt, lead: str) -> str:
    """How an answer begins with the prompt's prefill after what the template opened; a tag is not opened twice."""
    prefill = prompt.info.get("prefill") or ""
    if not isinstance(prefill, str):
        raise UserError(
            f"the prefill of prompt {prompt.id!r} is {prefill!r:.60}; it is the text that the answer begins with"
        )
    if lead.rstrip().endswith(OPEN) and prefill.startswith(OPEN):
        return lead.rstrip() + prefill.removeprefix(OPEN)
    return lead + prefill


def try_template(tokenizer: Any, folder: str) -> None:
    """Render one short question in a thread that is left behind when it takes too long."""
    results: queue.Queue[str | UserError | MemoryError] = queue.Queue()

    def render() -> None:
        try:
            results.put(rendered(tokenizer, [{"role": "user", "content": "Hello"}]))
        except (UserError, MemoryError) as error:
            results.put(error)

    threading.Thread(target=render, daemon=True).start()
    try:
        found = results.get(timeout=_SECONDS)
    except queue.Empty:
        raise UserError(
            f"the chat template of {folder} does not end: one short question takes it more than {_SECONDS:g} s"
        ) from None
    if isinstance(found, UserError):
        raise UserError(f"{folder}: {found}")
    if isinstance(found, MemoryError) or len(found) > _CHARACTERS:
        raise UserError(
            f"the chat template of {folder} makes more than {_CHARACTERS:,} characters of one short question"
        )
