"""Says how many answers could not be scored, and why: nothing is learned from them, so a run must not end as if all had been."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from posttrain.runs.reader import Reader

if TYPE_CHECKING:
    from posttrain.core.types import Group  # torch: the page reads without it

ERROR = "reward error"  # the kind of event that tells why


class Unscored:
    """Counts steps with answers that could not be scored; warns at the 1st, 10th, 100th."""

    def __init__(self) -> None:
        self.steps = self.answers = 0

    def check(self, step: int, groups: list[Group], metrics: dict[str, float], loop: Any) -> str:
        """Check a step; returns the warning that was printed, or ""."""
        failed = int(metrics.get("failed", 0.0))
        self.steps += failed > 0
        self.answers += failed
        if not failed or self.steps not in (1, 10, 100, 1000):
            return ""
        made = sum(len(g.rollouts) for g in groups)
        line = f"{failed} of {made} answers could not be scored, and nothing is learned from them"
        line += f": {loop.unscored}" if loop.unscored else ""
        line += f" ({self.answers} answers in {self.steps} steps so far)" if self.steps > 1 else ""
        print(f"warning: step {step + 1}: {line}", file=sys.stderr)
        return line

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "answers": self.answers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.answers = state["steps"], state["answers"]


def unscored(reader: Reader, phases: Iterable[str]) -> list[dict[str, Any]]:
    """By phase: how many answers could not be scored, of how many, and what was last told of the reason. Phases without any are left out."""
    out = []
    for phase in phases:
        query = "SELECT SUM(value) FROM metrics WHERE phase = ? AND name = 'failed'"
        failed = reader.db.execute(query, (phase,)).fetchone()[0]
        if isinstance(failed, (int, float)) and math.isfinite(failed) and failed >= 1:
            query = "SELECT message FROM events WHERE phase = ? AND kind = ? ORDER BY id DESC LIMIT 1"
            why = reader.db.execute(query, (phase, ERROR)).fetchone()
            made = sum(reader.made(phase).values())
            out.append({"phase": phase, "failed": int(failed), "made": made, "why": str(why[0]) if why else ""})
    return out
