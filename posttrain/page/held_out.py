"""Held-out points of a run with intervals: before training, at every evaluation on the way, at the end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from posttrain.page.series import Phase, finite
from posttrain.runs.reader import Reader
from posttrain.runs.reading import read_json

NAMES = ("accuracy", "held_out_reward")
_MOST = 400  # points of a run
_Z = 1.959964  # 95%


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share of n. For grades between 0 and 1 it is no narrower than theirs: their variance is at most p (1 - p)."""
    centre, spread = share + _Z**2 / (2 * n), _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def normal(values: list[float]) -> tuple[float, float]:
    """The 95% interval of a mean, by its standard error."""
    n, mean = len(values), sum(values) / len(values)
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / max(n - 1, 1) / n)
    return mean - _Z * error, mean + _Z * error


def held_out(
    reader: Reader, folder: Path, problems: int, there: list[Phase], begun: tuple[str, float | None] = ("", None)
) -> dict[str, Any] | None:
    """name, and points of step, value, low, high (None where a mean of rewards came without its parts); None where nothing was measured.

    begun: the score before training and its name, which a run that goes on, or was killed, tells without its parts."""
    kept = read_json(folder / "held_out.json")
    ends = {k: _numbers(kept.get(k)) for k in ("before", "after")}
    n = len(ends["after"]) or len(ends["before"]) or problems
    for name in NAMES:
        share = name == "accuracy"
        found = [(p.start + s + 1, v) for p in there for s, v in reader.series(name, p.name) if math.isfinite(v)]
        every = -(-len(found) // _MOST) if found else 1  # of very many measurements some, the last among them
        found = found[::-1][::every][::-1]
        points = [_point(step, value, _interval(value, n) if share else None) for step, value in found]
        if ends["before"] and (kept.get("name") == "accuracy") == share:
            total = sum(p.steps for p in there)
            points = [_end(0, ends["before"], share), *(p for p in points if not ends["after"] or p["step"] < total)]
            points += [_end(total, ends["after"], share)] if ends["after"] else []
        elif begun[1] is not None and (begun[0] == "accuracy") == share and not any(ends.values()):
            points.insert(0, _point(0, begun[1], _interval(begun[1], n) if share else None))
        if points:
            return {"name": name, "problems": n, "points": points}
    return None


def _interval(value: float, n: int) -> tuple[float, float] | None:
    return wilson(value, n) if n and 0 <= value <= 1 else None


def _end(step: int, values: list[float], share: bool) -> dict[str, Any]:
    mean = sum(values) / len(values)
    return _point(step, mean, _interval(mean, len(values)) if share else normal(values))


def _point(step: int, value: float, interval: tuple[float, float] | None) -> dict[str, Any]:
    low, high = interval or (None, None)
    return {"step": step, "value": finite(value), "low": finite(low), "high": finite(high)}


def _numbers(found: Any) -> list[float]:
    listed = found if isinstance(found, list) else []
    return [float(v) for v in listed if isinstance(v, int | float) and math.isfinite(v)]
