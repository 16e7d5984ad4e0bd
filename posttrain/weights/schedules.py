"""Learning rates over a run: the share of the peak that is in force after a share of the steps."""

from __future__ import annotations

import math
from collections.abc import Callable

_DECAY = 0.2  # share of a run at whose end "wsd" falls


def linear(done: float, floor: float = 0.0) -> float:
    """1 -> floor in a line: floor + (1 - floor) (1 - done)."""
    return floor + (1.0 - floor) * (1.0 - done) if floor else 1.0 - done


def cosine(done: float, floor: float = 0.0) -> float:
    """1 -> floor along half a cosine: floor + (1 - floor) (1 + cos(pi done)) / 2."""
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))


def wsd(done: float, floor: float = 0.0) -> float:
    """Warm-up, stable, decay: constant, and a line to the floor in the last fifth."""
    return linear(max(0.0, (done - (1.0 - _DECAY)) / _DECAY), floor)


SCHEDULES: dict[str, Callable[[float, float], float]] = {"linear": linear, "cosine": cosine, "wsd": wsd}
