"""Numbers formatted for people: times, rates, sparklines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """A curve in one line: means of at most `width` equal stretches, scaled from the lowest to the highest.

    A gap (nan) is a space; a flat curve lies at the bottom.
    """
    means = stretches(values, width)
    finite = [m for m in means if math.isfinite(m)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    return "".join(" " if not math.isfinite(m) else BLOCKS[level(m, low, span)] for m in means)


def level(value: float, low: float, span: float) -> int:
    """Which of the eight blocks: low is the first, low + span the last."""
    return min(int((value - low) / span * len(BLOCKS)), len(BLOCKS) - 1) if span > 0 else 0


def stretches(values: Sequence[float], width: int) -> list[float]:
    """Means of `width` equal stretches of the values (the values themselves when they are fewer)."""
    n, count = len(values), min(width, len(values))
    edges = [round(i * n / count) for i in range(count + 1)] if count else []
    return [mean(values[a:b]) for a, b in pairwise(edges)]


def mean(values: Sequence[float]) -> float:
    """Of the finite ones; nan without any."""
    finite = [v for v in values if math.isfinite(v)]
    return sum(finite) / len(finite) if finite else math.nan


def duration(seconds: float) -> str:
    """42s, 3m 05s, 2h 10m."""
    s = round(seconds)
    if s < 60:
        return f"{s}s"
    return f"{s // 60}m {s % 60:02d}s" if s < 3600 else f"{s // 3600}h {s % 3600 // 60:02d}m"


def short(value: float) -> str:
    """Three figures: 0.523, 12.3, 1.2e-05."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 100 else f"{value:.3g}"


def count(value: float) -> str:
    """1.6M, 12k, 640."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.0f}"


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"
