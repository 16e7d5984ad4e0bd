"""Rewards by name: `"numeric + 0.2*format"`; empty means that the task grades itself."""

from __future__ import annotations

import re
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.core.types import Group
from posttrain.rewards.rules.task import task
from posttrain.rewards.score import Scorer, ScoreReport

_SUMMAND = re.compile(r"^(?:(?P<weight>[-+]?[0-9.]+(?:[eE][-+]?\d+)?)\s*\*\s*)?(?P<name>[A-Za-z][\w-]*(?:\(.*\))?)$")


def build_scorer(spec: str, env: Any, timeout: float = 10.0) -> Any:
    """The scorer a spec stands for."""
    if not spec:
        return Scorer([("task", task.but(environment=env), 1.0)], timeout)
    rewards = []
    for piece in split_sum(spec):
        match = _SUMMAND.match(piece)
        if not match:
            raise UserError(f"cannot read {piece!r} in the reward {spec!r}; write it like 'numeric + 0.2*format'")
        part = task.but(environment=env) if match["name"] == "task" else find(match["name"], "reward")
        rewards.append((match["name"], part, float(match["weight"] or 1.0)))
    return Scorer(rewards, timeout)


def split_sum(spec: str) -> list[str]:
    """The summands of a spec; a + inside parentheses or quotes belongs to a parameter."""
    out, depth, quote = [""], 0, ""
    for c in spec:
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        else:
            depth += (c == "(") - (c == ")")
        if c == "+" and depth == 0 and not quote:
            out.append("")
        else:
            out[-1] += c
    return [piece.strip() for piece in out]


class Given:
    """For rollouts whose worth came with them (demonstrations, pairs): nothing to score."""

    def score(self, groups: list[Group]) -> ScoreReport:
        return ScoreReport(sum(len(g.rollouts) for g in groups))
