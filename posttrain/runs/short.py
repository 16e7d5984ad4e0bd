"""Says when a step learned from less than a batch although it asked for new prompts as often as its method allows."""

from __future__ import annotations

import sys
from typing import Any

from posttrain.core.types import Group


class Short:
    """Counts steps that dynamic sampling could not fill; warns at the 1st, 10th, 100th."""

    def __init__(self) -> None:
        self.steps = 0

    def check(self, step: int, groups: list[Group], metrics: dict[str, float], loop: Any) -> str:
        """Check a step; returns the warning that was printed, or ""."""
        kept = metrics.get("prompts_kept", float(loop.config.prompts))
        if kept >= loop.config.prompts:
            return ""
        self.steps += 1
        if self.steps not in (1, 10, 100, 1000):
            return ""
        asked, times = int(metrics["prompts_asked"]), f" ({self.steps} steps so far)" if self.steps > 1 else ""
        line = (
            f"of {asked} prompts in {loop.method.rounds} rounds only {int(kept)} of the {loop.config.prompts} wanted had answers "
            f"that differ in reward{times}; the task is too hard or too easy, or give more --rounds"
        )
        loop.run.event(loop.phase, step, "short", line)
        print(f"warning: step {step + 1}: {line}", file=sys.stderr)
        return line

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
