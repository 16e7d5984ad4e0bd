"""Tasksets of `verifiers` from 0.2 on: what a text answers is a task here, with the package's own scoring; the rest is refused."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment, Step
from posttrain.core.turn import Observation, Turn
from posttrain.environments.adapters.tasksets import Tasks, is_taskset
from posttrain.environments.task import task
from tests.cli.conftest import SMALL, call

NEW = find_spec("verifiers.v1") if find_spec("verifiers") else None
needs = pytest.mark.skipif(not NEW, reason="needs the package: pip install verifiers")
MINE = """
import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: str


class Add(vf.Task[Sum]):
    @vf.reward(weight=2.0)
    async def right(self, task, trace) -> float:
        return float(trace.last_reply == task.answer and trace.num_turns == 1)

    @vf.reward(weight=0.5)
    async def brief(self, trace) -> dict:
        return {"short": float(len(trace.last_reply) < 3)}

    @vf.metric
    async def asked(self, trace) -> float:
        return float(len(trace.messages))


class Broken(Add):
    @vf.reward
    async def fails(self, trace) -> float:
        raise ValueError("no")


class Boxed(Add):
    async def setup(self, trace, runtime) -> None: ...


class Unpaid(vf.Task[Sum]): ...


def made(kind):
    class Sums(vf.Taskset[kind]):
        def load(self):
            for a in range(20):
                yield kind(Sum(prompt=f"Add {a} and 1", system_prompt="Be brief." if a else None, answer=str(a + 1)))

    return Sums(vf.TasksetConfig())


def load():
    return made(Add)


def broken():
    return made(Broken)


def boxed():
    return made(Boxed)


def unpaid():
    return made(Unpaid)
"""


def answered(env: Environment, text: str, index: int = 0) -> Step:
    turn = Turn.of(Observation(torch.tensor([1])), torch.tensor([2]), torch.zeros(1), text)
    step: Any = env.open(env.prompt(index), 0).step(turn)
    found: Step = asyncio.run(step)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / f"{tmp_path.name}_taskset.py"
    made.write_text(MINE)
    return made


@needs
def test_tasks_are_prompts_and_score_themselves(file: Path) -> None:
    env = task(f"{file}:load")
    assert (env.size("train"), env.size("test")) == (18, 2)  # type: ignore[attr-defined]
    assert env.prompt(0).content == ({"role": "user", "content": "Add 0 and 1"},)
    assert env.prompt(1).content[0] == {"role": "system", "content": "Be brief."} and env.prompt(1).answer == "2"
    right, wrong = answered(env, "1"), answered(env, "123")
    assert (
        right.reward == 2.5
        and right.messages is None
        and right.info["metrics"] == {"right": 1.0, "short": 1.0, "asked": 2.0}
    )
    assert wrong.reward == 0.0


@needs
@pytest.mark.parametrize(("name", "told"), [("boxed", "prepares a box .setup."), ("unpaid", "pay for nothing")])
def test_what_needs_more_than_a_text_is_refused(file: Path, name: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        task(f"{file}:{name}")


@needs
def test_a_run_and_a_reward_that_fails(file: Path) -> None:
    said = call("run", "grpo", "--task", f"{file}:load", "--name", "tasks", *SMALL)
    assert said.code == 0, said.err
    with pytest.raises(Exception, match="no"):
        answered(task(f"{file}:broken"), "1")  # the episode is masked and counted


def test_they_are_told_by_what_they_have() -> None:
    both = SimpleNamespace(load=list, task_type=int, config=None)
    assert is_taskset(both) and not is_taskset(task("arithmetic")) and not is_taskset(object())
    assert not is_taskset(SimpleNamespace(load=list, task_type=int, prompt=int))


def test_tool_servers_are_refused_before_any_task_is_read() -> None:
    served: Any = SimpleNamespace(load=list, task_type=int, config=None, toolsets=lambda config: ["a server"])
    with pytest.raises(UserError, match="tool servers, which need the package's own harness"):
        Tasks(served, "mine")
