"""Nelder-Mead by questions: it finds the top of a hill, never asks twice, and a stopped search goes on as it would have."""

from __future__ import annotations

from posttrain.systems.reward_shaping_safety.proxy_point_search import ask, best

SIMPLEX = [[0.0, 0.0], [1.0, 0.2], [0.1, 1.0]]


def hill(point: list[float]) -> float:
    return -((point[0] - 1.7) ** 2) - 2 * (point[1] - 0.6) ** 2


def test_the_top_is_found() -> None:
    seen: list[list[object]] = []
    for _ in range(40):
        point = ask(SIMPLEX, seen)
        seen.append([point, hill(point)])
    assert [p for p, _ in seen[:3]] == SIMPLEX, "the corners come first"
    assert hill(best(seen)) > -0.01
    assert ask(SIMPLEX, seen[:9]) == seen[9][0], "what was tried says what is tried next"


def test_the_first_moves() -> None:
    # values -3.61, -.81, -2.88: worst is (0, 0), centre of the others (.55, .6), reflected (1.1, 1.2), which is worth -1.08: between
    # the two best, so it takes the worst one's place; now (.1, 1) is worst, centre (1.05, .7), reflected (2.0, .4)
    seen = [[p, hill(p)] for p in SIMPLEX]
    first = ask(SIMPLEX, seen)
    assert [round(x, 6) for x in first] == [1.1, 1.2]
    second = ask(SIMPLEX, [*seen, [first, hill(first)]])
    assert [round(x, 6) for x in second] == [2.0, 0.4]
