"""Any task of single answers as one with tools: the model calls, reads the results, and answers when it knows enough.

    env = with_tools(task("mine.jsonl"), [weather, calculator])

The schemas travel with the prompt (`Prompt.info["tools"]`), and the policy tells the model of them as its chat template does, or in words
(`policies/tool_use.py`). The answer, the first turn without a call, is graded by the task itself; an episode that ends without one
earns 0. What was called is in `Rollout.info["tools"]`, an entry for each turn.
"""

from __future__ import annotations

import asyncio
import copy
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posttrain.core.errors import UserError, nearest, unknown
from posttrain.core.protocols import Environment, Episode, Step
from posttrain.core.turn import Turn
from posttrain.core.types import Message, Prompt
from posttrain.environments.mapped import each
from posttrain.tools.calls import FORMATS, Parsed, parse
from posttrain.tools.one_call import Call
from posttrain.tools.tool import Tool, ToolError, checked, tool
from posttrain.tools.work import in_thread

_ID = re.compile("[A-Za-z0-9]{9}")  # what Mistral's template takes, and writes in calls
Record = dict[str, Any]  # a turn: its calls with results and seconds, its faults, its own seconds


@dataclass(frozen=True)
class ToolUse:
    """The tools of a task and how they may be used; one object for all its episodes."""

    tools: Mapping[str, Tool]
    format: str = "auto"
    max_turns: int = 8
    max_calls: int = 16
    faults: int = 2  # turns in a row whose every call is at fault, after which an episode ends
    seconds: float = 60.0  # that the tools and the grade of an episode take in all; sampling does not count
    grade: Callable[[Prompt, str], float] | None = None  # None: a reward scores the answer

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        return {name: one.parameters for name, one in self.tools.items()}

    def given(self, call: Call) -> dict[str, Any]:
        """The arguments of a call, if it names a tool and they fit; else a ToolError for the model to read."""
        if call.name not in self.tools:
            close = nearest(call.name, self.tools)
            hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(self.tools)}"
            raise ToolError(f"there is no tool {call.name[:60]!r}; {hint}")
        return checked(self.tools[call.name], call.arguments)


def with_tools(
    env: Environment, tools: Sequence[Tool | Callable[..., Any]], format: str = "auto", max_turns: int = 8,
    max_calls: int = 16, faults: int = 2, seconds: float = 60.0,
) -> Tooled:  # fmt: skip
    """The environment with tools: functions with type hints and a docstring, or Tool objects.

    format: how the model writes calls (`tools/calls.py`); "auto": whichever it does. max_turns, max_calls, seconds: of an episode.
    faults: turns in a row in which every call is at fault; after so many the episode ends.
    """
    if env.opens:
        raise UserError(f"{env.name} has turns of its own; tools are given to a task of single answers")
    if format not in (*FORMATS, "auto"):
        raise unknown("format of tool calls", format, (*FORMATS, "auto"))
    for name, value in {"max_turns": max_turns, "max_calls": max_calls, "faults": faults}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name} of the tools is {value!r}; it must be a whole number of at least 1")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
        raise UserError(f"seconds of the tools is {seconds!r}; it must be a number above 0")
    found = named(tools)
    use = ToolUse(found, format, max_turns, max_calls, faults, float(seconds), env.grade if env.graded else None)
    schemas = [one.schema for one in found.values()]
    asked = {"tools": schemas, "tool_format": format}
    return Tooled(each(env, lambda p, split: replace(p, info={**p.info, **asked})), use)


def named(tools: Sequence[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    """The tools by name; each has one of its own."""
    found: dict[str, Tool] = {}
    for one in tools:
        made = one if isinstance(one, Tool) else tool(one)
        if made.name in found:
            raise UserError(f"two tools are named {made.name!r}; a model can call one of them only")
        found[made.name] = made
    if not found:
        raise UserError("no tools were given; give functions with type hints and a docstring")
    return found


class Tooled(Environment):
    """A task of single answers with tools; its prompts, its splits and its grade are the task's own."""

    def __init__(self, env: Environment, use: ToolUse) -> None:
        self.env, self.use = env, use

    def __getattr__(self, name: str) -> Any:
        if name in ("env", "use"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def unpaid(self) -> Tooled:
        """The same where a reward scores the answers: episodes pay nothing themselves."""
        made = copy.copy(self)
        made.use = replace(self.use, grade=None)
        return made

    def over(self, env: Environment) -> Tooled:
        """The same tools over another task, with the same limits on episodes."""
        made = copy.copy(self)
        made.env = env
        return made

    @property
    def graded(self) -> bool:
        return self.env.graded

    @property
    def opens(self) -> bool:
        return True

    def prompt(self, index: int, split: str = "train") -> Prompt:
        return self.env.prompt(index, split)

    def open(self, prompt: Prompt, key: int) -> ToolEpisode:
        return ToolEpisode(prompt, self.use)

    def grade(self, prompt: Prompt, text: str) -> float:
        """The task's own grade of what is said outside calls: the arguments of a call are no answer."""
        return self.env.grade(prompt, parse(text, self.use.parameters, self.use.format).text)

    def validate(self, n: int) -> list[str]:
        return self.env.validate(n)


@dataclass
class ToolEpisode(Episode):
    """One conversation with tools. Its state is counters, so a turn whose step is known is replayed without calling anything."""

    prompt: Prompt
    use: ToolUse
    turns: int = 0
    calls: int = 0
    bad: int = 0  # turns in a row whose every call was at fault
    spent: float = 0.0  # seconds in tools and in the grade
    said: list[Record] = field(default_factory=list)

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolEpisode:
        """A copy of the counters; the prompt and the tools are the same ones (a database, a browser)."""
        return replace(self, said=copy.deepcopy(self.said, memo))

    async def step(self, turn: Turn) -> Step:
        """Read the turn, call what it calls, and return the results; without calls it is the answer."""
        read = parse(turn.text, self.use.parameters, self.use.format, cut=not turn.stopped)
        good, faults = self._checked(read)
        stop = self._limit(turn, read, good)
        began, results = time.monotonic(), list[tuple[str, float]]()
        if not stop:
            results = await self._run(good)
        took = time.monotonic() - began
        record = {
            "calls": [
                {"name": c.name, "arguments": c.arguments, "repaired": c.repaired, "result": text, "seconds": seconds}
                for (c, _), (text, seconds) in zip(good, results, strict=False)
            ],
            "faults": faults, "seconds": took,
        }  # fmt: skip
        self._count(record)
        if not stop and self.bad >= self.use.faults:
            stop = "content"
        if not stop and self.spent >= self.use.seconds and (good or faults):
            stop = "timeout"
        if not stop and (ended := self._end(good, results)) is not None:
            return await self._last("tool_end", ended)
        if not stop and not good and not faults:
            return await self._last("answered", read.text)
        if stop:
            return await self._last(stop, read.text if stop == "length" else None)
        return Step(self._messages(good, results, faults), info=self._info())

    def replay(self, turn: Turn, step: Step) -> None:
        """The state after a turn whose step is known; no tool is called again."""
        self._count(step.info["tools"][-1])

    # ---- what a turn asks for

    def _checked(self, read: Parsed) -> tuple[list[tuple[Call, dict[str, Any]]], list[str]]:
        """The calls that can be made with their arguments, and what is wrong with the others."""
        good, faults = [], list(read.faults)
        for call in read.calls:
            try:
                good.append((call, self.use.given(call)))
            except ToolError as error:
                faults.append(str(error))
        return good, faults

    def _limit(self, turn: Turn, read: Parsed, good: Sequence[Any]) -> str:
        """Why nothing is called although the turn may ask for it; empty where nothing stands against it."""
        if not turn.stopped:
            return "length"
        if read.unclosed:
            return "structural"
        if not read.calls and not read.faults:
            return ""
        if self.turns + 1 >= self.use.max_turns:
            return "max_turns"
        return "max_calls" if self.calls + len(good) > self.use.max_calls else ""

    # ---- calls

    async def _run(self, good: Sequence[tuple[Call, dict[str, Any]]]) -> list[tuple[str, float]]:
        """What the calls return with the seconds of each: all at once, in the order of the calls, none beyond the deadline."""
        left = self.use.seconds - self.spent
        return list(await asyncio.gather(*(self._one(self.use.tools[c.name], given, left) for c, given in good)))

    async def _one(self, one: Tool, given: dict[str, Any], left: float) -> tuple[str, float]:
        began, most = time.monotonic(), max(min(one.seconds, left), 0.0)
        try:
            said = await in_thread(lambda: one.attempt(given), most)
        except TimeoutError:
            said = one.late(most)
        return whole_text(one.bounded(said)), time.monotonic() - began

    def _end(self, good: Sequence[tuple[Call, Any]], results: Sequence[tuple[str, float]]) -> str | None:
        """The result of a call that ends the episode, where one was made and did not fail."""
        made = zip(good, results, strict=True)
        return next((r for (c, _), (r, _) in made if self.use.tools[c.name].ends and not r.startswith("error:")), None)

    def _messages(
        self, good: Sequence[Any], results: Sequence[tuple[str, float]], faults: Sequence[str]
    ) -> list[Message]:
        """Results in the order of the calls, then what is wrong with the rest."""
        said = [(c.name, c.id, text) for (c, _), (text, _) in zip(good, results, strict=True)]
        said += [("error", "", f"error: {whole_text(fault)}") for fault in faults]
        first = sum(len(r["calls"]) + len(r["faults"]) for r in self.said[:-1])
        return [
            {
                "role": "tool",
                "name": name,
                "tool_call_id": id if _ID.fullmatch(id) else f"call{first + i:05d}",
                "content": text,
            }
            for i, (name, id, text) in enumerate(said)
        ]

    # ---- the state

    def _count(self, record: Record) -> None:
        self.said = [*self.said, record]
        self.turns += 1
        self.calls += len(record["calls"])
        self.bad = 0 if record["calls"] or not record["faults"] else self.bad + 1
        self.spent += record["seconds"]

    def _info(self) -> dict[str, Any]:
        return {"tools": self.said}

    async def _last(self, stop: str, answer: str | None) -> Step:
        """The end: the task's grade of the answer, 0 where there is none, nothing where a reward scores it."""
        grade = self.use.grade
        if grade is None:
            return Step(None, stop=stop, info=self._info())
        if answer is None:
            return Step(None, 0.0, stop=stop, info=self._info())
        reward = await in_thread(lambda: grade(self.prompt, answer), max(self.use.seconds - self.spent, 1.0))
        return Step(None, float(reward), stop=stop, info=self._info())


def whole_text(text: str) -> str:
    """A text that can be written down: half a character (a lone surrogate in an argument that came back) becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
