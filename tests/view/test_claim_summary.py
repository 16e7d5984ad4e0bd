"""Claims are counted by their last attempt, and by their first: a third try that succeeds is no success at the first."""

from __future__ import annotations

from typing import Any

from posttrain.core.index import Row
from posttrain.view.attempts import interval, tried
from posttrain.view.claim_summary import claim_summary

CHECK = {"name": "more", "metric": "x", "difference": 0.3, "low": -0.1, "high": 0.7, "margin": 0.1, "shown": False}


def attempt(verdict: str, level: str = "table", **more: Any) -> Row:
    return {"attempt": 1, "date": "2026-01-01", "seeds": 5, "verdict": verdict, "level": level, "checks": [], **more}


def claim(*attempts: Row, waiting: bool = False, stale: bool = False) -> Row:
    return {"attempts": list(attempts), "waiting": waiting, "stale": stale}


def test_first_and_last_attempts_are_counted_apart() -> None:
    told = claim_summary(
        {
            "a": claim(attempt("not shown"), attempt("not shown"), attempt("shown")),
            "b": claim(attempt("shown"), attempt("not shown", "pocket", recorded_verdict="shown")),
            "c": claim(attempt("shown"), stale=True),
            "d": claim(waiting=True),
            "e": claim(attempt("shown"), attempt("shown", "pocket", earlier=True), waiting=True, stale=True),
        }
    )
    assert told[2:4] == ["| table | 2 | 0 | 3 of 4 |", "| pocket | 0 | 1 | 0 of 0 |"]
    assert told[5] == "3 claims were run: 2 shown, 1 not; at the first attempt 3 of 4."
    assert told[6:] == [
        "1 were recorded otherwise, by the rule for intervals of their time: b.",
        "2 have not been run as they stand now: d, e.",
        "1 of them were run before, as an earlier claim with other checks or seeds: e.",
        "1 were run with code that has changed since: c.",
    ]


def test_what_was_said_by_another_rule_is_printed_beside() -> None:
    then = {"how": "percentile bootstrap", "low": 0.2, "high": 0.4, "shown": True}
    told = interval(CHECK | {"recorded": then})
    assert told == (
        "**not shown** more +0.3 [-0.1, +0.7] (recorded as shown: percentile bootstrap [+0.2, +0.4]), margin +0.1"
    )
    assert "recorded" not in interval(CHECK | {"recorded": then | {"shown": False}})
    flat = CHECK | {"how": "no spread: all seeds equal"}
    assert "on every seed: no spread, no interval" in interval(flat)
    (line,) = tried(claim(attempt("not shown", recorded_verdict="shown")))[2:]
    assert "| not shown (recorded as shown) |" in line
