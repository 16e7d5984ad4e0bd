"""Rows whose answer is a list of tool calls: logged turns of an assistant, for methods that learn to call and run nothing.

{"question": "Weather in Oslo?", "tools": [...], "answer": [{"name": "weather", "arguments": {"city": "Oslo"}}]}

The calls may also be a JSON text, lines between <tool_call> and </tool_call>, or the `tool_calls` of the last message (OpenAI); their
arguments may be called parameters. A row whose answer is any other text wants that text and no call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment
from posttrain.core.registry import Part
from posttrain.core.types import Prompt
from posttrain.environments.base import size_of
from posttrain.environments.data import DataEnvironment
from posttrain.environments.mapped import Change, Mapped, each
from posttrain.environments.questions import is_calls

OPEN, CLOSE = "<tool_call>", "</tool_call>"
LOOKED_AT = 1000  # rows that are looked at for a call


@dataclass(frozen=True)
class GoldCall:
    """One call: the tool's name and its arguments by name."""

    name: str
    arguments: dict[str, Any]


def as_call(value: Any) -> GoldCall:
    """A call from {"name", "arguments" | "parameters"} or {"function": {...}}; ValueError says what is wrong with it."""
    inner = (
        value.get("function") if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping) else value
    )
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise ValueError(f'a call is {{"name": ..., "arguments": {{...}}}}, got {value!r:.80}')
    given = inner.get("arguments", inner.get("parameters"))
    if isinstance(given, str):
        given = json.loads(given)
    if not isinstance(given, Mapping):
        raise ValueError(f"the arguments of {inner['name']} are an object, got {given!r:.80}")
    return GoldCall(inner["name"], dict(given))


def lines_of(text: str) -> list[GoldCall]:
    """The calls between the first <tool_call> and the </tool_call> after it, one JSON object per line; ValueError where there are none."""
    _, opened, rest = text.partition(OPEN)
    inside, closed, _ = rest.partition(CLOSE)
    if not opened or not closed:
        raise ValueError(f"there is no {OPEN} ... {CLOSE}")
    return [as_call(json.loads(line)) for line in inside.strip().split("\n")]


def gold_calls(prompt: Prompt) -> list[GoldCall]:
    """The calls that a prompt wants, none where it wants a text; ValueError where they cannot be read."""
    told = prompt.info.get("imitated")
    if isinstance(told, Mapping) and told.get("tool_calls"):
        return [as_call(c) for c in told["tool_calls"]]
    answer = prompt.answer
    if isinstance(answer, str):
        if OPEN in answer:
            return lines_of(answer)
        try:
            answer = json.loads(answer) if answer.lstrip().startswith(("[", "{")) else None
        except ValueError:
            return []
    listed = [answer] if isinstance(answer, Mapping) else answer
    return [as_call(c) for c in listed] if is_calls(listed) else []


def tools_of(prompt: Prompt) -> list[dict[str, Any]]:
    """The tools that a row lists, each with at least a name; a JSON text is read. ValueError where they cannot be read."""
    listed = prompt.info.get("tools")
    if isinstance(listed, str):
        listed = json.loads(listed) if listed.strip() else None
    if listed is None:
        return []
    if isinstance(listed, Mapping) or not isinstance(listed, Iterable):
        raise ValueError(f"tools is a list of tools, got {listed!r:.80}")
    found = [x.get("function", x) if isinstance(x, Mapping) else x for x in listed]
    if bad := [x for x in found if not isinstance(x, Mapping) or not isinstance(x.get("name"), str)]:
        raise ValueError(f'a tool is {{"name": ..., "description": ..., "parameters": ...}}, got {bad[0]!r:.80}')
    return [dict(x) for x in found]


def calling(env: Environment, change: Change, grade: Part, method: str) -> Environment:
    """The environment with its prompts changed and its answers graded by their calls; a sentence where no row wants a call."""
    made = each(env, _readable(change, method))
    made = replace(made, reward=grade) if isinstance(made, DataEnvironment) else Graded(made, grade)
    some = [made.prompt(i) for i in range(min(size_of(made, "train") or LOOKED_AT, LOOKED_AT))]
    if not any(gold_calls(p) for p in some):
        raise UserError(
            f"{method} learns from logged calls, and no row of {env.name} has one; give rows whose answer is a list of calls: "
            '{"question": "...", "tools": [...], "answer": [{"name": "weather", "arguments": {"city": "Oslo"}}]}'
        )
    return made


class Graded(Mapped):
    """An environment whose answers are graded by a reward."""

    def __init__(self, env: Environment, by: Part) -> None:
        super().__init__(env, lambda p, split: p)
        self.by = by

    @property
    def graded(self) -> bool:
        return True

    def grade(self, prompt: Prompt, text: str) -> float:
        return float(self.by(prompt, text))


def _readable(change: Change, method: str) -> Change:
    """The change, of prompts whose calls and tools can be read; the first that cannot ends the run with a sentence."""

    def changed(prompt: Prompt, split: str) -> Prompt | None:
        try:
            gold_calls(prompt)
            return change(prompt, split)
        except ValueError as error:
            raise UserError(f"{method}: the row {prompt.id} cannot be read: {error}") from None

    return changed
