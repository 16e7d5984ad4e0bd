"""What a plan reports at its end is written as what it is: counts whole, decisions in words, measurements in three figures."""

from __future__ import annotations

from posttrain.view.live import _figure


def test_counts_decisions_and_measurements() -> None:
    assert [_figure(x) for x in (2, 1200, False, True, 0.25)] == ["2", "1,200", "no", "yes", "0.250"]
