"""Tasksets of the package `verifiers` from 0.2 on (`import verifiers.v1 as vf`), as far as a text answers them: `--task mine.py:load`, where load
returns a vf.Taskset, or `--task "verifiers(id='NAME')"` for one that is installed.

A task has a prompt, perhaps a system prompt, and methods marked `@vf.reward` and `@vf.metric` (and judges), which are told the task's data and the
trace, here one of the prompt and the answer. Tasks that are worked on in a box, with tool servers or with preparations there, need the
package's own harness: those are refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from itertools import islice
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Environment, Episode, Step
from posttrain.core.turn import Turn
from posttrain.core.types import Message, Prompt
from posttrain.environments.base import SPLITS
from posttrain.environments.held_out import one_in_ten

MOST = 10_000  # tasks that are read of a taskset without an end


def is_taskset(env: Any) -> bool:
    """Whether an object is a taskset: it loads tasks of a type, and has no prompts of ours."""
    loads = callable(getattr(env, "load", None)) and callable(getattr(env, "task_type", None))
    return loads and not callable(getattr(env, "prompt", None))


class Tasks(Environment):
    """The tasks of one; each is answered once."""

    def __init__(self, taskset: Any, name: str = "") -> None:
        self.name = str(getattr(taskset.config, "id", "") or name or type(taskset).__name__)
        if taskset.toolsets(taskset.config):
            raise UserError(f"{self.name} {_SERVERS}")
        tasks = list(islice(taskset, MOST))
        if not tasks:
            raise UserError(f"{self.name} has no tasks")
        answerable(tasks[0], self.name)
        self.rows = one_in_ten(tasks, self.name)

    def size(self, split: str) -> int:
        return len(self.rows[split])

    def prompt(self, index: int, split: str = "train") -> Prompt:
        """Task number `index`; passes over a split repeat it."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        place = index % len(self.rows[split])
        data = self.rows[split][place].data
        if data.prompt is None:
            raise UserError(
                f"task {place} of {self.name} has no prompt: its user opens the conversation, which needs the package's own harness"
            )
        said = (
            [{"role": "user", "content": data.prompt}]
            if isinstance(data.prompt, str)
            else [_plain(m) for m in data.prompt]
        )
        system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
        return Prompt(
            f"{self.name}-{split}-{place}",
            (*system, *said),
            getattr(data, "answer", None),
            {"split": split, "place": place},
        )

    def open(self, prompt: Prompt, key: int) -> Episode:
        return Answer(self.rows[prompt.info["split"]][prompt.info["place"]], prompt)


class Answer(Episode):
    """One task, scored by its own rewards."""

    def __init__(self, task: Any, prompt: Prompt) -> None:
        self.task, self.prompt = task, prompt

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Answer:
        return Answer(self.task, self.prompt)

    async def step(self, turn: Turn) -> Step:
        trace = traced(self.task, self.prompt.content, turn.text)
        await self.task.score(trace)
        scores = {name: one.score for name, one in trace.rewards.items() if one is not None}
        found = {k: v for k, v in trace.metrics.items() if v is not None} | scores
        return Step(None, float(trace.reward), stop="answered" if turn.stopped else "length", info={"metrics": found})


def traced(task: Any, asked: tuple[Message, ...], text: str) -> Any:
    """The trace that rewards look at: the prompt, and the answer as the model's only turn."""
    v1, graph, trace, state = (import_module(f"verifiers.v1{name}") for name in ("", ".graph", ".trace", ".state"))
    kinds = {
        "system": v1.SystemMessage,
        "user": v1.UserMessage,
        "assistant": v1.AssistantMessage,
        "tool": v1.ToolMessage,
    }
    messages = [kinds[m["role"]](**{k: v for k, v in m.items() if k != "role"}) for m in asked]
    nodes = [graph.MessageNode(parent=i - 1 if i else None, message=m) for i, m in enumerate(messages)]
    last = graph.MessageNode(
        parent=len(nodes) - 1 if nodes else None, message=v1.AssistantMessage(content=text), sampled=True
    )
    return trace.Trace(
        task=trace.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash), state=state.state_cls(type(task))(),
        agent=trace.AgentInfo(config=v1.AgentConfig()), nodes=[*nodes, last], is_completed=True, ok=True,
    )  # fmt: skip


_SERVERS = "has tool servers, which need the package's own harness; give the functions as --tools mine.py instead"


def answerable(task: Any, name: str) -> None:
    """A UserError for a task that a text alone does not answer."""
    kind, base = type(task), import_module("verifiers.v1").Task
    if kind.toolsets(task.config):
        raise UserError(f"{name} {_SERVERS}")
    prepared = [
        hook for hook in ("setup", "finalize", "stage_verifier") if getattr(kind, hook) is not getattr(base, hook)
    ]
    if kind.NEEDS_CONTAINER or task.data.image or prepared:
        why = f"prepares a box ({', '.join(prepared)})" if prepared else "is worked on in a box of its own"
        raise UserError(
            f"a task of {name} {why}, which needs the package's own harness; tasks that a text answers are trained on here"
        )
    if not task.hooks("reward") and not task.config.judges:
        raise UserError(f"the tasks of {name} pay for nothing; mark a method with @vf.reward")


def _plain(message: Any) -> Message:
    """A typed message as a dict, without empty fields."""
    fields = message.model_dump() if hasattr(message, "model_dump") else dict(message)
    return {k: v for k, v in fields.items() if v is not None}


def installed(v1: Any, id: str, options: Mapping[str, Any]) -> Tasks:
    """The taskset that is installed under an id, with its own options."""
    return Tasks(v1.load_taskset(v1.taskset_config_type(id)(id=id, **options)), id)
