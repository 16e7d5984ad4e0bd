"""Nelder-Mead over proxy points, one question at a time: what was tried and what came of it says which points are tried next.

The search of arXiv:2310.04373: reflect the worst corner of the simplex by 1, expand by 2, contract by 1/2, shrink by 1/2. It is begun
anew from the list of answers at every question, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Point = list[float]
NEAR = 5e-3  # points that differ by less, in units of the first simplex, are one
ROUNDS = 100


class Wanted(Exception):
    """The value of this point is needed next."""

    def __init__(self, point: Point) -> None:
        super().__init__(str(point))
        self.point = point


def best(seen: Sequence[Sequence[Any]]) -> Point:
    """The point with the highest value."""
    found: Point = max(seen, key=lambda s: s[1])[0]
    return found


def ask(simplex: Sequence[Point], seen: Sequence[Sequence[Any]]) -> Point:
    """Which point to try next, given [point, value] of those that were tried; the best of them once the simplex has closed."""
    widths = [max(max(x) - min(x), 1e-12) for x in zip(*simplex, strict=True)]

    def value(point: Point) -> float:
        for other, found in seen:
            if all(abs(a - b) < NEAR * w for a, b, w in zip(point, other, widths, strict=True)):
                return float(found)
        raise Wanted(point)

    corners = [list(p) for p in simplex]
    try:
        for _ in range(ROUNDS):
            corners = move(sorted(corners, key=value, reverse=True), value)
    except Wanted as wanted:
        return wanted.point
    return best(seen)


def move(corners: list[Point], value: Callable[[Point], float]) -> list[Point]:
    """One round from corners in order, the best first."""
    centre = [math.fsum(x) / len(x) for x in zip(*corners[:-1], strict=True)]
    worst = corners[-1]
    reflected = along(centre, worst, -1.0)
    if value(corners[-2]) < value(reflected) <= value(corners[0]):
        return [*corners[:-1], reflected]
    if value(reflected) > value(corners[0]):
        expanded = along(centre, reflected, 2.0)
        return [*corners[:-1], expanded if value(expanded) > value(corners[0]) else reflected]
    contracted = along(centre, worst, 0.5)
    if value(contracted) > value(worst):
        return [*corners[:-1], contracted]
    return [corners[0], *(along(corners[0], p, 0.5) for p in corners[1:])]


def along(origin: Point, other: Point, times: float) -> Point:
    """So far from the origin towards the other."""
    return [a + times * (b - a) for a, b in zip(origin, other, strict=True)]
