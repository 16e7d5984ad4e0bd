"""Warns when a run learns nothing: no gradient, or no group selected, for several steps in a row."""

from __future__ import annotations

import sys
from typing import Any

from posttrain.core.types import Group

_SEVERAL = 5


class Silence:
    """Counts steps in a row without a gradient; warns at the 5th, 50th and 500th."""

    def __init__(self) -> None:
        self.on_end, self.total = 0, 0

    def check(self, step: int, groups: list[Group], metrics: dict[str, float], loop: Any) -> str:
        """Check a step; returns the warning that was printed, or ""."""
        silent = metrics.get("groups_kept", 1.0) == 0 or metrics.get("grad_norm", 0.0) == 0
        self.on_end = self.on_end + 1 if silent else 0
        self.total += silent
        if self.on_end not in (_SEVERAL, 10 * _SEVERAL, 100 * _SEVERAL):
            return ""
        line = f"nothing was learned for {self.on_end} steps: {why(groups, metrics)}"
        loop.run.event(loop.phase, step, "silence", line)
        print(f"warning: step {step + 1}: {line}", file=sys.stderr)
        return line

    def state_dict(self) -> dict[str, Any]:
        return {"on_end": self.on_end, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.on_end, self.total = state["on_end"], state["total"]


def why(groups: list[Group], metrics: dict[str, float]) -> str:
    """The likeliest reason, and what to do."""
    scored = [[r.total for r in g.scored] for g in groups]
    if not any(scored):
        return "no answer could be scored; look at the reward's failures in the log"
    if any(g.pairs or g.ranking or any("label" in r.rewards for r in g.rollouts) for g in groups):
        return (
            "the loss is flat, as it is where answers that were compared are very far apart already; use a lower --lr, a smaller beta or fewer steps, "
            "and check that some weights are trainable"
        )
    if all(len(set(some)) <= 1 for some in scored):
        worth = {x for some in scored for x in some}
        level = "too hard" if max(worth) <= 0 else "too easy" if min(worth) >= 1 else "of one worth"
        return (
            f"every answer of a group earned the same (the task is {level}); change the task, its level or the reward"
        )
    if metrics.get("groups_kept", 1.0) == 0:
        return "the selection left no group; use another --select"
    return "the gradient is 0; check that the loss reads what the advantage writes, and that some weights are trainable"
