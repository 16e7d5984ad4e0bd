"""The paired percentile bootstrap against cases worked by hand."""

from __future__ import annotations

import math

import pytest

from posttrain.core.errors import UserError
from posttrain.evals.intervals import differences, estimate, interval, resampled_means, student, t_quantile, wilson


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


# ---- of a mean over problems


def test_wilson_by_hand() -> None:
    """0 of n: z^2 / (n + z^2), z = 1.959964: 3.841459 / 43.841459 = 0.0876216. 1 of 2: 1/2 -+ z / (2 sqrt(2 + z^2))."""
    assert wilson(0.0, 40) == (0.0, pytest.approx(0.0876216, abs=1e-6))
    assert wilson(1.0, 40) == (pytest.approx(1 - 0.0876216, abs=1e-6), 1.0)
    half = 1.959964 / (2 * math.sqrt(2 + 3.841459))
    assert wilson(0.5, 2) == (pytest.approx(0.5 - half, abs=1e-6), pytest.approx(0.5 + half, abs=1e-6))


@pytest.mark.parametrize(
    ("df", "t"), [(1, 12.706205), (2, 4.302653), (3, 3.182446), (10, 2.228139), (30, 2.042272), (5000, 1.960439)]
)
def test_quantiles_of_student_t(df: int, t: float) -> None:
    """df = 1: tan(0.475 pi) = 12.706205; df = 2: 0.95 / sqrt(2 * 0.975 * 0.025) = 4.302653; the others from tables."""
    assert t_quantile(0.975, df) == pytest.approx(t, abs=1e-5)


def test_student_by_hand() -> None:
    """1, 2, 3: mean 2, var 1, error sqrt(1/3), t(2) = 4.302653: 2 -+ 2.484138."""
    assert student([1.0, 2.0, 3.0]) == (pytest.approx(-0.484138, abs=1e-5), pytest.approx(4.484138, abs=1e-5))
    assert all(math.isnan(x) for x in student([1.0]))


def test_nothing_right_is_not_certainly_nothing() -> None:
    """0 of 40 with one answer each; with 8 answers each the problems are what counts, so the end is the same."""
    once = estimate([[0.0]] * 40)
    assert (once.low, once.how) == (0.0, "Wilson") and once.high == pytest.approx(0.0876216, abs=1e-6)
    often = estimate([[0.0] * 8] * 40)
    assert often.high == once.high and "clustered by problem" in often.how


def test_answers_to_one_problem_count_by_how_much_they_differ() -> None:
    """Problems all right or all wrong: 8 answers say no more than one. Problems alike, answers not: as 80 answers."""
    alike = estimate([[1.0] * 8, [0.0] * 8] * 5)
    assert (alike.low, alike.high) == wilson(0.5, 10)
    mixed = estimate([[1.0, 0.0] * 4 + [1.0], [1.0, 0.0] * 4 + [0.0]] * 5)
    assert mixed.mean == 0.5 and (mixed.low, mixed.high) == wilson(0.5, 90)


def test_other_scores_have_students_interval() -> None:
    made = estimate([[1.0, 3.0], [2.0], [3.0, 3.0]])  # problems' means 2, 2, 3
    assert made.how == "Student t over problems" and made.mean == pytest.approx(7 / 3)
    assert (made.low, made.high) == student([2.0, 2.0, 3.0]) and made.n == 3
    assert math.isnan(estimate([[], []]).mean)


def test_the_interval_holds_what_it_says() -> None:
    """300 evaluations of 40 rare problems (chances from Beta(0.1, 10), true mean 1/101) with 8 answers each: the interval
    holds the truth in about 95% of them; the plain mean -+ t error in 74% (2,000 were tried)."""
    from posttrain.core import rng

    held = plain = 0
    for trial in range(300):
        draw = rng.python("coverage", trial)
        chances = [draw.betavariate(0.1, 10) for _ in range(40)]
        rows = [[float(draw.random() < p) for _ in range(8)] for p in chances]
        made = estimate(rows)
        held += made.low <= 1 / 101 <= made.high
        low, high = student([sum(row) / 8 for row in rows])
        plain += low <= 1 / 101 <= high
    assert held >= 0.92 * 300 and plain < 0.85 * 300
