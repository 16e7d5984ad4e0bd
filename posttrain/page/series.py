"""Curves for a page: each metric in bins with mean, least and most, so that a picture of any width keeps every extreme.

A bin holds 1, 2, 4 ... 32, 100, 200 ... steps, counted from the first of its phase, so what was drawn does not move while a run goes on. Steps are
counted from 1, phase after phase; x may also be the answers, tokens or seconds spent by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.runs.reader import Reader, is_time
from posttrain.runs.schema import BUCKET

AXES = ("step", "answers", "tokens", "seconds")
POINTS = 500  # bins of a curve at most
_FEWEST, _MOST = 10, 4000
_HUGE = 1.7e308
_STEPS = 50_000_000  # of a phase: more are those of a damaged file


@dataclass(frozen=True)
class Phase:
    """A phase with its place on the axis of steps: its first step is `start` + 1."""

    name: str
    start: int
    steps: int
    finished: bool
    role: str
    answers: bool


def phases(reader: Reader) -> list[Phase]:
    """In the order they began."""
    out: list[Phase] = []
    roles, start = reader.roles(), 0
    for name in reader.phases():
        last = reader.db.execute("SELECT MAX(step) FROM metrics WHERE phase = ?", (name,)).fetchone()[0]
        steps = last + 1 if isinstance(last, int) and last >= 0 else 0
        if steps > _STEPS:
            raise UserError(f"{name} has a step {last}; at most {_STEPS} are shown, so this database is damaged")
        role, answers = roles.get(name, ("policy", True))
        out.append(Phase(name, start, steps, reader.finished(name), role, answers))
        start += steps
    return out


def names(reader: Reader) -> list[str]:
    """Metrics and times; the index is skipped through."""
    found = set(reader.names())
    query = "SELECT MIN(name) FROM times WHERE phase = ? AND name > ?"
    for phase in reader.phases():
        name = ""
        while (name := reader.db.execute(query, (phase, name)).fetchone()[0]) is not None:
            found.add(name)
    return sorted(found)


def width_for(steps: int, points: int) -> int:
    """Steps of a bin, so that there are at most so many: 1, 2, 4 ... 32, then whole hundreds, which the store has rolled up."""
    width = 1
    while steps > width * points:
        width = BUCKET if width == 32 else 2 * width
    return width


def curves(reader: Reader, wanted: list[str], points: int = POINTS, x: str = "step", after: int = 0) -> dict[str, Any]:
    """name -> step (the last of a bin) and mean, low and high where a bin has several steps, and x on another axis. A gap is None.

    after: only bins that reach beyond this step; all that is known beyond `from` is replaced by them."""
    if x not in AXES:
        raise unknown("x axis", x, AXES)
    if not _FEWEST <= points <= _MOST:
        raise UserError(f"points is {points}; it must be {_FEWEST} to {_MOST}")
    there = phases(reader)
    width = width_for(sum(p.steps for p in there), points)
    found = {name: _curve(reader, name, there, width, after) for name in wanted}
    if x != "step":
        spent = spending(reader, x, there)
        for curve in found.values():
            curve["x"] = [spent[min(step, len(spent) - 1)] for step in curve["step"]]
    begins = [p.start + first for p in there if (first := _first(p, width, after)) < p.steps]
    total = sum(p.steps for p in there)
    return {"axis": x, "width": width, "steps": total, "from": min(begins, default=total), "curves": found}


def _first(phase: Phase, width: int, after: int) -> int:
    """The step of a phase that the bin with `after` begins at."""
    return max(0, after - phase.start) // width * width


def _curve(reader: Reader, name: str, there: list[Phase], width: int, after: int) -> dict[str, list[Any]]:
    keys = ("mean", "low", "high") if width > 1 else ("mean",)
    out: dict[str, list[Any]] = {"step": [], **{key: [] for key in keys}}
    rolled = width % BUCKET == 0 and not is_time(name)
    for phase in there:
        first = _first(phase, width, after)
        read = _hundreds if rolled and not first else _bins  # the newest steps alone are few
        for last, count, *numbers in read(reader, name, phase, width, first):
            out["step"].append(phase.start + last + 1)
            for key, value in zip(keys, numbers, strict=False):
                out[key].append(finite(value) if count else None)
    return out


Bin = tuple[int, int, Any, Any, Any]  # its last step, how many values, their mean, least and most


def _bins(reader: Reader, name: str, phase: Phase, width: int, first: int) -> Iterable[Bin]:
    query = (
        "SELECT MAX(step), COUNT(value), AVG(value), MIN(value), MAX(value) "
        f"FROM {'times' if is_time(name) else 'metrics'} WHERE phase = ? AND name = ? AND step >= ? GROUP BY step / ?"
    )
    return map(tuple, reader.db.execute(query, (phase.name, name, first, width)))


def _hundreds(reader: Reader, name: str, phase: Phase, width: int, first: int) -> Iterable[Bin]:
    """The same of a whole phase (first is 0), from the roll-ups by hundred steps."""
    for place, some in groupby(reader.buckets(name, phase.name), key=lambda b: b["bucket"] * BUCKET // width):
        known = [b for b in some if b["n"]]
        n, last = sum(b["n"] for b in known), min((place + 1) * width, phase.steps) - 1
        if not n:
            yield last, 0, None, None, None
            continue
        mean = sum(b["mean"] * b["n"] for b in known) / n
        yield last, n, mean, min(b["least"] for b in known), max(b["most"] for b in known)


def spending(reader: Reader, what: str, there: list[Phase]) -> list[float]:
    """What was spent by the end of each step, of all phases; place 0 is before the first."""
    each = [0.0]
    for phase in there:
        if what == "answers":
            made = reader.made(phase.name)
            each += [float(made.get(step, 0)) for step in range(phase.steps)]
        else:
            found = {step: value for step, value in reader.series(what, phase.name) if finite(value) is not None}
            each += [found.get(step, 0.0) for step in range(phase.steps)]
    return [round(total, 3) for total in accumulate(each)]


def finite(value: Any) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(f"{value:.6g}") if isinstance(value, int | float) and -_HUGE < value < _HUGE else None
