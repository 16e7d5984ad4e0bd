"""A row as a question: which columns ask, which one answers, and which answers are imitated."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from posttrain.core.answers import boxed, hashed
from posttrain.core.registry import Part
from posttrain.core.types import Message, Prompt
from posttrain.environments.base import corrupt
from posttrain.environments.choices import choices_of, letter_of, listed
from posttrain.environments.fields import (
    NAMES,
    cell,
    checked_text,
    conversation_of,
    need,
    reply,
    under,
    with_system,
)

Raw = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """How rows become prompts, and what grades the answers."""

    fields: Mapping[str, str] = field(default_factory=dict)  # field -> column, where the usual names do not fit
    usual: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NAMES)  # field -> the usual names
    reward: str | Part = ""  # "": chosen from the gold answers
    suffix: str = ""  # what is asked for, written after every question
    shape: Callable[[Raw], Raw | None] | None = None  # a row as the loader should see it; None leaves it out
    write: Callable[[str], str] = str  # a good text for a gold answer, for validate
    spoil: Callable[[Random, Prompt], str] = corrupt  # a wrong text, for validate
    turns: str = "all"  # of a conversation, which of the assistant's turns are imitated: "all" or the "last"


PLAIN = Layout()


def question_builder(columns: dict[str, str], seen: list[str], called: str, layout: Layout) -> Callable[[Raw], Prompt]:
    """row -> Prompt. ValueError says what is wrong with a row."""
    whole = "messages" in columns and ("question" not in columns or "answer" not in columns)  # nothing else answers
    asks = columns["messages"] if whole else columns.get("question", "")
    if seen and not asks:
        need("question", columns, seen, called)
    used = {columns.get(f) for f in ("question", "messages", "answer", "system", "input", "demonstration")} | {
        "imitated"
    }

    def build(row: Raw) -> Prompt:
        if row.get(asks) is None:
            raise ValueError(f"no {asks!r} in it")
        content, (answer, info) = conversation_of(row[asks]), answer_of(row, columns)
        if content[-1]["role"] == "assistant":
            content, answer, info = _answered(content, answer, info, layout.turns)
        texts, labels = choices_of(cell(row, columns, "choices"))
        if texts and answer is not None:
            several = isinstance(answer, (list, tuple))
            right = [letter_of(a, texts, labels) for a in (answer if several else [answer])]
            answer = right if several else right[0]
        content = under(content, cell(row, columns, "input"))
        last = {**content[-1], "content": _asked(content[-1]["content"], listed(texts) + layout.suffix)}
        content = with_system((*content[:-1], last), cell(row, columns, "system"))
        kept = {k: v for k, v in row.items() if k not in used} | ({"choices": texts} if texts else {})
        if "demonstration" in columns and not _is_empty(row.get(columns["demonstration"])):
            info = {"demonstration": _text(row[columns["demonstration"]], columns["demonstration"])}
        begins = cell(row, columns, "prefill")
        if begins is not None and not isinstance(begins, str):
            raise ValueError(f"{columns['prefill']!r} is {begins!r:.60}; it is the text that the answer begins with")
        return Prompt("", content, answer, kept | info | ({"prefill": begins} if begins else {}))

    return build


def _answered(
    content: tuple[Message, ...], answer: Any, info: dict[str, Any], turns: str
) -> tuple[tuple[Message, ...], Any, dict[str, Any]]:
    """A conversation that ends with the assistant: the prompt is all before its last turn, which is the answer unless a column has one."""
    before, said = reply(list(content))
    calls = bool(content[-1].get("tool_calls"))
    if not before:
        raise ValueError("the conversation begins with the assistant: there is nothing that it answers")
    if answer is not None:
        return before, answer, info
    if not said and not calls:
        raise ValueError("the last turn of the assistant is empty")
    if calls and turns != "all":
        raise ValueError("the last turn calls tools, which only the chat template can write; learn all turns")
    several = calls or (turns == "all" and any(m["role"] == "assistant" for m in before))
    return before, said, {"imitated": content[-1]} if several else {}


def answer_of(row: Raw, columns: Mapping[str, str]) -> tuple[Any, dict[str, Any]]:
    """The gold answer, and the whole text to imitate where the answer is only its end.

    A solution that ends in #### or in a box is graded by what stands there; a message (TRL's completion) is its text.
    """
    if "answer" not in columns:
        return None, {}
    answer = row.get(columns["answer"])
    if is_calls(answer):
        return json.dumps(answer), {}
    if isinstance(answer, Mapping):
        answer = answer.get("text", [answer])  # SQuAD's answers; one message
    if _is_empty(answer) or (isinstance(answer, (list, tuple)) and any(map(_is_empty, answer))):
        raise ValueError(f"no {columns['answer']!r} in it")
    if isinstance(answer, (list, tuple)) and all(isinstance(m, Mapping) for m in answer):
        before, answer = reply(list(answer))
        if before:
            raise ValueError(
                f"{columns['answer']!r} is a conversation of its own; put all of it into one column `messages`"
            )
    if isinstance(answer, (list, tuple)) and any(isinstance(a, (list, tuple, Mapping)) for a in answer):
        raise ValueError(f"{columns['answer']!r} is a text, a number, or a list of those, got {answer!r:.60}")
    if not isinstance(answer, str):
        return answer, {}
    short = hashed(checked_text(answer))
    short = boxed(answer) if short is None else short
    if short == "":
        raise ValueError(
            f"{columns['answer']!r} marks its end as the answer, and nothing is there: {answer.strip()[-40:]!r}"
        )
    return (answer.strip(), {}) if short is None else (short, {"demonstration": answer.strip()})


def is_calls(value: Any) -> bool:
    """A list of tool calls, {"name", "arguments"} or OpenAI's {"function": ...}: kept as a JSON text."""
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(x, Mapping) and "role" not in x and ("name" in x or "function" in x) for x in value)
    )


def _text(value: Any, column: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{column!r} is a text, got {value!r:.60}")
    return checked_text(value).strip()


def _is_empty(value: Any) -> bool:
    """No answer: null, a number that is none, an empty list, a text of spaces."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or value == [] or (isinstance(value, float) and math.isnan(value))


def _asked(content: Any, added: str) -> Any:
    if isinstance(content, str):
        return content + added
    return [*content, {"type": "text", "text": added}] if added else content
