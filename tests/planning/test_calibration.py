"""The factors are those of the rows they are said to come from, and rows that were left out are predicted within 20%."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.plan_check import BAR, Row, fit, rollouts, training, wholes
from posttrain.planning.speed import MEASURED


def test_the_factors_are_fitted_to_the_recorded_rows() -> None:
    assert asdict(fit()) == pytest.approx(asdict(MEASURED), rel=0.01)


def rows() -> list[Row]:
    return [*rollouts(), *training(), *wholes()]


@pytest.mark.parametrize("row", [r for r in rows() if r.use == "checked" and not r.note], ids=lambda r: r.name)
def test_rows_that_were_not_calibrated_on(row: Row) -> None:
    assert abs(row.ratio - 1) <= BAR


def test_what_misses_says_why() -> None:
    """Two whole runs on slow hosts; each has a note, and nothing else has one."""
    missed = [r for r in rows() if r.use == "checked" and not r.within]
    assert len(missed) == 2 and all("slow host" in r.note for r in missed)
    assert sum(r.use == "checked" for r in rows()) >= 19
