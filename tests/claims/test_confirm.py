"""One seed that gives the recorded digits confirms a record for the code as it is; another number confirms nothing."""

from __future__ import annotations

import math
from concurrent.futures import Future
from typing import Any

import pytest

from claims.machinery import confirm as confirming
from claims.machinery.claim import find_claim
from claims.machinery.confirm import confirm, differing
from claims.machinery.evidence import attempts
from claims.machinery.verdict import same_digits

MADE = {"arms": {"a": {"x": {"values": [0.25, 0.5]}}, "b": {"x": {"values": [1.0, 2.0]}}}}


def test_equal_digits_differ_nowhere() -> None:
    assert differing(MADE, {"a": {"x": [0.25]}, "b": {"x": [1.0]}}) == []


def test_digits_that_are_the_same() -> None:
    """Six digits are recorded; kinds of CPU may differ by one in the sixth."""
    assert same_digits(1.92413, 1.9241350889) and same_digits(-3e-7, -3.00001e-7) and same_digits(0.0, 0.0)
    assert not same_digits(1.92413, 1.92415) and not same_digits(0.0, 1e-9) and not same_digits(1.0, -1.0)
    assert not same_digits(math.nan, 1.0) and not same_digits(math.inf, 1.0)


def test_every_difference_is_named() -> None:
    assert differing(MADE, {"a": {"x": [0.250002]}, "b": {"x": [1.0]}}) == ["a: x"]
    assert differing(MADE, {"a": {"x": [0.25]}, "b": {"x": [1.00002]}}) == ["b: x"]
    assert differing(MADE, {"a": {"x": [0.250001]}, "b": {"x": [1.00001]}}) == []  # one in the last of six digits
    assert differing(MADE, {"a": {"x": [0.25]}}) == ["b"]
    assert differing(MADE, {"a": {"x": [0.25], "y": [1.0]}, "b": {"x": [1.0]}}) == ["a: y"]


@pytest.mark.parametrize(("write", "expected"), [(True, ["dstc"]), (False, [])])
def test_a_look_marks_nothing(monkeypatch: pytest.MonkeyPatch, write: bool, expected: list[str]) -> None:
    """`posttrain check dstc --confirm --no-write` says whether the digits are equal, and leaves the record alone."""
    marked: list[str] = []

    class Pool:
        def __init__(self, jobs: int) -> None: ...
        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: Any) -> None: ...
        def submit(self, work: Any, id: str) -> Future[Any]:
            done: Future[Any] = Future()
            made = attempts(find_claim(id))[-1]["arms"]
            done.set_result({arm: {m: x["values"][:1] for m, x in metrics.items()} for arm, metrics in made.items()})
            return done

    monkeypatch.setattr(confirming, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(confirming, "mark", lambda claim, *_: marked.append(claim.id))
    assert list(confirm(["dstc"], write=write)) == [("dstc", [])]
    assert marked == expected
