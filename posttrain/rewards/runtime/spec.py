"""Rewards by name, or as a function in a file: `"numeric + 0.2*mine.py:polite"`; empty: the task grades itself."""

from __future__ import annotations

import re
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.core.python_file import import_file
from posttrain.core.registry import find, split_sum
from posttrain.core.types import Group
from posttrain.rewards.rules.task import task
from posttrain.rewards.runtime.score import Scorer, ScoreReport

_NAME = r"[A-Za-z][\w-]*(?:\(.*\))?|[^*]+\.py:\w+"
_SUMMAND = re.compile(rf"^(?:(?P<weight>[-+]?[0-9.]+(?:[eE][-+]?\d+)?)\s*\*\s*)?(?P<name>{_NAME})$")


def build_scorer(spec: str, env: Any, timeout: float = 10.0) -> Any:
    """The scorer a spec stands for."""
    if not spec:
        return Scorer([("task", task.but(environment=env), 1.0)], timeout)
    rewards = []
    for piece in split_sum(spec):
        match = _SUMMAND.match(piece)
        if not match:
            told = "write it like 'numeric + 0.2*format', or 'mine.py:function'"
            raise UserError(f"cannot read {piece!r} in the reward {spec!r}; {told}")
        rewards.append((*named(match["name"], env), float(match["weight"] or 1.0)))
    return Scorer(rewards, timeout)


def named(name: str, env: Any) -> tuple[str, Any]:
    """(what a rollout keeps its number under, the reward): `task`, a registered rule, or `file.py:function`."""
    file, _, function = name.rpartition(":")
    if file.endswith(".py"):
        return function, function_of(file, function)
    return name, task.but(environment=env) if name == "task" else find(name, "reward")


def function_of(file: str, name: str) -> Any:
    """A function of the user's, in any of the ways of rewards/conventions.py."""
    module = import_file(file, f"--reward {file}:{name}")
    made = {k for k, x in vars(module).items() if callable(x) and getattr(x, "__module__", "") == module.__name__}
    if name not in vars(module):
        raise unknown(f"function in {file}", name, made)
    return getattr(module, name)


class Given:
    """For rollouts whose worth came with them (demonstrations, pairs): nothing to score."""

    def score(self, groups: list[Group]) -> ScoreReport:
        return ScoreReport(sum(len(g.rollouts) for g in groups))
