"""Chat templates are programs of a stranger: rendered in transformers' sandbox, with limits on time and size tried at loading."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.types import Message
from posttrain.models.folder import one_line

_SECONDS = 10.0  # for one short question
_CHARACTERS = 1_000_000  # that a template may make of it


def rendered(tokenizer: Any, messages: Sequence[Message], answering: bool = True) -> str:
    """Messages as the template writes them; whatever goes wrong in it is one sentence."""
    text = applied(tokenizer, messages, tokenize=False, add_generation_prompt=answering)
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
