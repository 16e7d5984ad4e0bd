"""What two arms spent differently is told where their check is printed."""

from __future__ import annotations

from typing import Any

import pytest

from claims.machinery.claim import BUDGETS
from claims.machinery.spending import COUNTED, apart
from posttrain.view.attempts import interval

CHECK: dict[str, Any] = {
    "name": "more", "metric": "x", "difference": 0.3, "low": 0.2, "high": 0.4, "margin": 0.1, "shown": True, "better": "a", "worse": "b",
}  # fmt: skip


def spending(a: dict[str, float], b: dict[str, float]) -> dict[str, list[float]]:
    """Of arms with 10 updates each and these budgets, the second seed with twice as much of all."""
    arms = {name: {k: [n, 2 * n] for k, n in ({"updates": 10.0} | x).items()} for name, x in (("a", a), ("b", b))}
    return apart({"spent": arms}, CHECK)


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        ({"samples": 100.0, "tokens": 81.0}, {"samples": 100.0, "tokens": 100.0}, ""),  # within a fifth
        ({"samples": 200.0, "tokens": 79.0}, {"samples": 100.0, "tokens": 100.0}, ", with 2x the samples, 0.79x the tokens"),
        ({"samples": 200.0, "tokens": 200.0}, {"samples": 100.0, "tokens": 100.0}, ", with 2x the samples and tokens"),
        ({"written": 1000.0}, {"samples": 40.0}, ", with no samples against 60, 1,500 rows against none"),  # means of n and 2 n
        ({"prompts": 0.0, "updates": 5.0}, {"prompts": 30.0}, ", with 0.5x the updates"),  # prompts were not counted
        ({"samples": 100.0}, {"updates": 0.0}, ""),  # the other is the start
    ],
)  # fmt: skip
def test_budgets_that_differ_by_more_than_a_fifth(a: dict[str, float], b: dict[str, float], told: str) -> None:
    found = spending(a, b)
    assert interval(CHECK | ({"spent": found} if found else {})) == f"more +0.3 [+0.2, +0.4], margin +0.1{told}"


def test_a_check_against_a_number_and_a_record_without_budgets_tell_nothing() -> None:
    assert apart({"spent": {"a": {"updates": [3.0]}}}, CHECK | {"worse": 0.5}) == {} and apart({}, CHECK) == {}
    assert set(COUNTED) < set(BUDGETS)
