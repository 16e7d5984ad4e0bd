"""pass@k against a count of all subsets, and its mean over problems by hand."""

from __future__ import annotations

from itertools import combinations

import pytest

from posttrain.core.errors import UserError
from posttrain.evals.pass_at_k import ladder, mean_pass_at_k, pass_at_k


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 0, 2, 0.0),  # nothing is right
        (4, 4, 1, 1.0),
        (4, 1, 1, 0.25),  # k = 1 is the plain accuracy c / n
        (4, 1, 2, 0.5),  # of 6 pairs 3 hold the one right answer
        (4, 2, 2, 5 / 6),  # only 1 of 6 pairs has both wrong; the plain 1 - (1 - 1/2)^2 would say 3/4
        (4, 3, 2, 1.0),  # one wrong answer cannot fill two places
        (5, 2, 3, 0.9),  # C(3, 3) = 1 of C(5, 3) = 10 has no right one
    ],
)
def test_by_hand(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "c", "k"), [(6, 2, 3), (7, 5, 2), (8, 1, 4), (5, 0, 5)])
def test_is_the_share_of_subsets_with_a_right_answer(n: int, c: int, k: int) -> None:
    subsets = list(combinations(range(n), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(min(s) < c for s in subsets) / len(subsets))


def test_mean_and_error_over_problems() -> None:
    """n = 2, k = 1: right 0, 1, 2 give 0, 1/2, 1: mean 1/2, variance 1/4, error sqrt(1/4 / 3)."""
    mean, error = mean_pass_at_k(2, [0, 1, 2], 1)
    assert mean == pytest.approx(0.5) and error == pytest.approx((0.25 / 3) ** 0.5)
    assert mean_pass_at_k(2, [1], 2) == (1.0, 0.0)  # one problem has no spread


def test_ladder() -> None:
    assert ladder(1) == [1]
    assert ladder(8) == [1, 2, 4, 8]
    assert ladder(10) == [1, 2, 4, 8, 10]


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_nonsense_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(UserError):
        pass_at_k(n, c, k)


def test_no_problems() -> None:
    with pytest.raises(UserError, match="no problems"):
        mean_pass_at_k(2, [], 1)
