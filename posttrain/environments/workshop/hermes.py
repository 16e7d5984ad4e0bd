"""A scene with tools: calls are read by `tools/calls.py`, made, and answered, until an answer without one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.core.answers import final_answer
from posttrain.core.errors import nearest
from posttrain.core.types import Prompt
from posttrain.environments.base import same_text
from posttrain.environments.workshop.scene import Reply, Scene
from posttrain.tools.calls import HERMES, parse
from posttrain.tools.one_call import Call
from posttrain.tools.tool import Tool, ToolError, checked

OPEN, CLOSE = HERMES
FAULTS = 2  # turns in a row without a good call that are answered; the next ends the episode


def call(name: str, /, **arguments: Any) -> str:
    """A call as pocket-2 writes it."""
    return f"{OPEN}{json.dumps({'name': name, 'arguments': arguments})}{CLOSE}"


def described(schemas: Sequence[Mapping[str, Any]]) -> str:
    """The system message that pocket-2's chat template makes of `tools`, for conversations that are written without it."""
    functions = [schema["function"] for schema in schemas]
    lines = [f"{f['name']}({', '.join(f['parameters']['properties'])}): {f['description']}" for f in functions]
    return "\n".join(["Tools:", *lines])


class ToolScene(Scene):
    """Makes calls until an answer without one, which is compared with the right one."""

    most = 6  # calls

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(prompt)
        self.count = self.bad = 0

    def tools(self) -> list[Tool]:
        """The tools of this problem."""
        raise NotImplementedError

    def reply(self, text: str) -> Reply:
        tools = {t.name: t for t in self.tools()}
        read = parse(text, {name: t.parameters for name, t in tools.items()})
        if not read.calls and not read.faults:
            answer = final_answer(text)
            return Reply(None, float(bool(answer) and same_text(self.prompt, answer or "")))
        good, faults = _checked(tools, read.calls)
        faults = [*read.faults, *faults]
        if read.unclosed:
            return Reply(None, stop="structural", faults=tuple(faults))
        if self.count + len(good) > self.most:
            return Reply(None, stop="max_calls", faults=tuple(faults))
        made = [_made(tools[c.name], c, given) for c, given in good]
        self.count, self.bad = self.count + len(made), 0 if made else self.bad + 1
        said = "\n".join([*(m["result"] for m in made), *(f"error: {fault}" for fault in faults)])
        return Reply(
            said if self.bad <= FAULTS else None, role="tool", stop="content", calls=tuple(made), faults=tuple(faults)
        )


def _checked(tools: Mapping[str, Tool], calls: Sequence[Call]) -> tuple[list[tuple[Call, dict[str, Any]]], list[str]]:
    """The calls that can be made with their arguments, and what is wrong with the others."""
    good, faults = [], []
    for one in calls:
        if one.name not in tools:
            close = nearest(one.name, tools)
            hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(tools)}"
            faults.append(f"there is no tool {one.name[:60]!r}; {hint}")
            continue
        try:
            good.append((one, checked(tools[one.name], one.arguments)))
        except ToolError as error:
            faults.append(str(error))
    return good, faults


def _made(tool: Tool, one: Call, given: dict[str, Any]) -> dict[str, Any]:
    """A call and its result; the workshop's tools bound their own time, so no thread is needed."""
    result = tool.bounded(tool.attempt(given))
    return {"name": one.name, "arguments": one.arguments, "repaired": one.repaired, "result": result}
