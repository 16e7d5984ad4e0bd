"""Numbers for people."""

from __future__ import annotations

import math

import pytest

from posttrain.view.figures import count, duration, mean, percent, short, sparkline, stretches


def test_sparkline_by_hand() -> None:
    """0..7 are the eight blocks; scaled from lowest to highest; gaps are spaces; a flat curve lies at the bottom."""
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5, 5]) == "▁▁▁"
    assert sparkline([0.0, math.nan, 1.0]) == "▁ █"
    assert sparkline([-1, 1]) == "▁█"
    assert sparkline([]) == "" and sparkline([math.nan]) == ""


def test_a_long_curve_is_averaged() -> None:
    assert stretches([1, 3, 5, 7], 2) == [2, 6]
    assert stretches([1, 2, 3, 4, 5], 2) == [1.5, 4.0]  # the edge at 2.5 rounds to 2
    assert stretches([1.0, 2.0], 9) == [1.0, 2.0]
    assert len(sparkline(list(range(1000)), 60)) == 60


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.4, "59s"), (60, "1m 00s"), (185, "3m 05s"), (7800, "2h 10m")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.5234, "0.523"), (0, "0.000"), (1.2e-5, "1.2e-05"), (12345, "1.23e+04"), (math.nan, "-")]
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(("value", "text"), [(640, "640"), (12_000, "12k"), (1_640_064, "1.64M"), (2e9, "2B")])
def test_count(value: float, text: str) -> None:
    assert count(value) == text


def test_mean_and_percent() -> None:
    assert mean([1.0, math.nan, 3.0]) == 2.0 and math.isnan(mean([]))
    assert percent(0.4567) == "45.7%"
