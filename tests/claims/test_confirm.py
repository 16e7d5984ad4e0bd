"""One seed that gives the recorded digits confirms a record for the code as it is; another number confirms nothing."""

from __future__ import annotations

from claims.machinery.confirm import differing

MADE = {"arms": {"a": {"x": {"values": [0.25, 0.5]}}, "b": {"x": {"values": [1.0, 2.0]}}}}


def test_equal_digits_differ_nowhere() -> None:
    assert differing(MADE, {"a": {"x": [0.25]}, "b": {"x": [1.0]}}) == []


def test_every_difference_is_named() -> None:
    assert differing(MADE, {"a": {"x": [0.250001]}, "b": {"x": [1.0]}}) == ["a: x"]
    assert differing(MADE, {"a": {"x": [0.25]}}) == ["b"]
    assert differing(MADE, {"a": {"x": [0.25], "y": [1.0]}, "b": {"x": [1.0]}}) == ["a: y"]
