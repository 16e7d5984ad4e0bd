"""The paired percentile bootstrap against cases worked by hand."""

from __future__ import annotations

import pytest

from posttrain.core.errors import UserError
from posttrain.evals.intervals import differences, interval, resampled_means


def test_two_values_have_three_means() -> None:
    """Of 0 and 1, two draws give 0, 1/2, 1 with probability 1/4, 1/2, 1/4."""
    means = resampled_means([0.0, 1.0], resamples=4000)
    for value, share in ((0.0, 0.25), (0.5, 0.5), (1.0, 0.25)):
        assert float((means == value).double().mean()) == pytest.approx(share, abs=0.03)  # 4 standard errors of 0.007


def test_the_interval_is_the_central_part() -> None:
    """The quantiles 0.025 and 0.975 fall on 0 and 1; those of 0.3 and 0.7 both on 1/2."""
    assert interval([0.0, 1.0]) == (0.0, 1.0)
    assert interval([0.0, 1.0], level=0.4) == (0.5, 0.5)


def test_an_interval_moves_and_grows_with_its_values() -> None:
    low, high = interval([1.0, 2.0, 3.0, 4.0])
    assert interval([11.0, 12.0, 13.0, 14.0]) == (pytest.approx(low + 10), pytest.approx(high + 10))
    assert interval([2.0, 4.0, 6.0, 8.0]) == (pytest.approx(2 * low), pytest.approx(2 * high))
    assert interval([-1.0, -2.0, -3.0, -4.0])[1] < 0 < low


def test_equal_values_leave_no_doubt() -> None:
    assert interval([0.7] * 5) == (pytest.approx(0.7), pytest.approx(0.7))


def test_pairing_removes_what_the_seed_contributes() -> None:
    """Seeds spread over 10, the arms always 1 apart: unpaired intervals overlap, the paired difference is a point."""
    a, b = [1.0, 6.0, 11.0], [0.0, 5.0, 10.0]
    assert differences(a, b) == [1.0, 1.0, 1.0]
    assert interval(differences(a, b)) == (1.0, 1.0)
    assert interval(a)[0] < interval(b)[1]


def test_what_cannot_be_resampled_is_told() -> None:
    with pytest.raises(UserError, match="no values"):
        interval([])
    with pytest.raises(UserError, match="arms of 2 and 3 seeds"):
        differences([1.0, 2.0], [1.0, 2.0, 3.0])
