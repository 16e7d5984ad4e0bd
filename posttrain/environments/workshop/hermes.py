"""Tool calls as Hermes and Qwen write them, and a scene that runs them: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.core.answers import final_answer
from posttrain.core.errors import nearest
from posttrain.core.types import Prompt
from posttrain.environments.base import same_text
from posttrain.environments.workshop.scene import Reply, Scene
from posttrain.tools.tool import Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)
FAULTS = 2  # that are answered; the next ends the episode
_FORM = f'write {OPEN}{{"name": ..., "arguments": {{...}}}}{CLOSE}'


class Fault(Exception):
    """A call that cannot be read, in words for the model."""


def call(name: str, /, **arguments: Any) -> str:
    """A call as the model writes it."""
    return f"{OPEN}{json.dumps({'name': name, 'arguments': arguments})}{CLOSE}"


def described(tools: Sequence[Tool]) -> str:
    """The tools as the system message names them; pocket-2's chat template writes the same of `tools`."""
    lines = [f"{t.name}({', '.join(t.parameters['properties'])}): {t.description}" for t in tools]
    return "\n".join(["Tools:", *lines])


def read_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls of an answer, outside of its thoughts; a Fault says what is wrong with them."""
    said = final_answer(text) or ""
    found = _CALL.findall(said)
    if OPEN in _CALL.sub("", said):
        raise Fault(f"the call is not closed; {_FORM}")
    return [_read(one) for one in found]


def _read(inside: str) -> tuple[str, dict[str, Any]]:
    try:
        made = json.loads(inside)
    except (ValueError, RecursionError):
        raise Fault(f"the call is not JSON; {_FORM}") from None
    if not isinstance(made, Mapping) or not isinstance(made.get("name"), str):
        raise Fault(f"the call has no name; {_FORM}")
    if not isinstance(made.get("arguments"), dict):
        raise Fault(f"the call has no arguments; {_FORM}")
    return made["name"], made["arguments"]


class ToolScene(Scene):
    """Runs calls until an answer without one, which is compared with the right one."""

    most = 6  # calls

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(prompt)
        self.count = self.faults = 0

    def tools(self) -> list[Tool]:
        """The tools of this problem."""
        raise NotImplementedError

    def reply(self, text: str) -> Reply:
        try:
            calls = read_calls(text)
        except Fault as fault:
            return self._faulty(f"error: {fault}", {"fault": str(fault)})
        if not calls:
            answer = final_answer(text)
            return Reply(None, float(bool(answer) and same_text(self.prompt, answer or "")))
        self.count += len(calls)
        if self.count > self.most:
            return Reply(None, stop="max_calls")
        by_name = {t.name: t for t in self.tools()}
        done = [_run(by_name, name, arguments) for name, arguments in calls]
        said = "\n".join(d["result"] for d in done)
        if any(d["fault"] for d in done):
            return self._faulty(said, *done)
        self.faults = 0
        return Reply(said, role="tool", calls=tuple(done))

    def _faulty(self, said: str, *done: dict[str, Any]) -> Reply:
        """What a fault is answered with, until there are too many in a row."""
        self.faults += 1
        return Reply(said if self.faults <= FAULTS else None, role="tool", stop="content", calls=done)


def _run(tools: Mapping[str, Tool], name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name not in tools:
        close = nearest(name, tools)
        hint = f"did you mean {close}?" if close else f"there are: {', '.join(tools)}"
        result = f"error: there is no tool {name[:40]!r}; {hint}"
    else:
        result = tools[name](arguments)
    fault = result if result.startswith("error: ") else ""
    return {"name": name, "arguments": arguments, "result": result, "fault": fault}
