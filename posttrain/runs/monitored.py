"""The monitors as metrics of the run: how many of them speak, and which, so that dashboards and scripts can watch for them."""

from __future__ import annotations

import math
from typing import Any

from posttrain.core.types import Group
from posttrain.runs.monitors import LEAST, NAMES
from posttrain.runs.reader import Reader
from posttrain.runs.warnings import findings

_LOOKS = 100  # in a run, at most: a look reads curves and the newest answers


class Monitored:
    """Looks every 1% of the steps, at least 10 apart, at what the database knows by then: a resumed run finds the same."""

    def check(self, step: int, groups: list[Group], metrics: dict[str, float], loop: Any) -> str:
        """Adds `warnings` and `monitor/<name>` to the metrics of a step that is looked at; says nothing, the report does."""
        store = getattr(loop.run, "store", None)
        if isinstance(store, Reader) and (step + 1) % every(loop.config.steps) == 0:
            metrics.update(figures({f.name for f in findings(store, loop.phase)}))
        return ""


def every(steps: int) -> int:
    """Steps from one look to the next."""
    return max(2 * LEAST, math.ceil(steps / _LOOKS))


def figures(found: set[str]) -> dict[str, float]:
    """How many monitors speak, and of each 1 or 0."""
    single = {f"monitor/{name.replace(' ', '_').replace('-', '_')}": float(name in found) for name in NAMES}
    return {"warnings": float(len(found)), **single}
