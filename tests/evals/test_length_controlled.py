"""The win rate at equal length, by hand."""

from __future__ import annotations

import math

import pytest

from posttrain.core.errors import UserError
from posttrain.evals.length_controlled import length_controlled
from posttrain.evals.policy_report import against
from posttrain.evals.win_rate import win_rate


def answers(*kinds: tuple[int, float, int]) -> tuple[list[float], list[float], list[float], list[float]]:
    """(how many, the difference of lengths, how many of them are won), as scores and lengths."""
    ours, ours_long = [], []
    for count, longer, won in kinds:
        ours += [1.0] * won + [-1.0] * (count - won)
        ours_long += [100.0 + longer] * count
    return ours, [0.0] * len(ours), ours_long, [100.0] * len(ours)


@pytest.mark.derived("eval/length-controlled")
def test_two_lengths_by_hand() -> None:
    """As many answers are longer by 7 as are shorter by 7, so tanh(d / std d) is t and -t, and two groups fit two coefficients exactly:
    a + b t = logit(9/10) = log 9, a - b t = logit(1/2) = 0; a = log 9 / 2 = log 3, sigmoid(a) = 3/4. The raw rate is (9 + 5) / 20 = 7/10."""
    told = answers((10, 7.0, 9), (10, -7.0, 5))
    assert win_rate(told[0], told[1]) == pytest.approx(0.7)
    assert length_controlled(*told, ridge=0.0) == pytest.approx(0.75, abs=1e-6)
    # as many again of the longer ones tell nothing new of either group, and the raw rate moves alone: (18 + 5) / 30.
    # d is then 7 for 20 and -7 for 10 answers; both sides have the same |t| whatever std is
    more = answers((20, 7.0, 18), (10, -7.0, 5))
    assert win_rate(more[0], more[1]) == pytest.approx(23 / 30)
    assert length_controlled(*more, ridge=0.0) == pytest.approx(0.75, abs=1e-6)


def test_a_winner_by_length_alone() -> None:
    """Longer by 5: 9 of 10 won; shorter by 5: 1 of 10. log 9 and -log 9: a = 0, so the rate at equal length is 1/2, and so it is where
    the policy is longer nine times in ten: raw (81 + 1) / 100."""
    told = answers((90, 5.0, 81), (10, -5.0, 1))
    assert win_rate(told[0], told[1]) == pytest.approx(0.82)
    assert length_controlled(*told, ridge=0.0) == pytest.approx(0.5, abs=1e-6)


def test_the_scale_of_lengths_does_not_matter_and_sides_are_symmetric() -> None:
    ours, theirs = [3.0, 1.0, 2.0, 5.0, 0.0, 4.0], [2.0, 2.0, 2.0, 1.0, 3.0, 1.0]
    a, b = [10.0, 4.0, 7.0, 30.0, 2.0, 3.0], [5.0, 9.0, 6.0, 10.0, 8.0, 11.0]
    rate = length_controlled(ours, theirs, a, b)
    assert length_controlled(ours, theirs, [9 * x for x in a], [9 * x for x in b]) == pytest.approx(rate, abs=1e-9)
    assert length_controlled(theirs, ours, b, a) == pytest.approx(1 - rate, abs=1e-9)
    assert 0 < rate < 1 and rate != pytest.approx(win_rate(ours, theirs), abs=1e-3)


def test_where_there_is_nothing_to_control() -> None:
    """Equal lengths, or one side wins all: the raw rate. A tie is half a win."""
    assert length_controlled([1.0, 2.0, 0.0], [0.0, 2.0, 1.0], [4.0, 5.0, 6.0], [4.0, 5.0, 6.0]) == 0.5
    assert length_controlled([1.0, 1.0], [0.0, 0.0], [9.0, 3.0], [4.0, 5.0]) == 1.0


def test_length_that_decides_every_win_stays_finite() -> None:
    """Longer wins always, shorter never: b is held by its ridge, and by symmetry a is 0."""
    rate = length_controlled(*answers((8, 3.0, 8), (8, -3.0, 0)))
    assert rate == pytest.approx(0.5, abs=1e-6) and math.isfinite(rate)


def test_everybody_longer_by_the_same() -> None:
    """d is the same for all: the ridge alone tells b from a, and takes b to 0; the rate is the raw one."""
    assert length_controlled(*answers((10, 4.0, 7))) == pytest.approx(0.7, abs=1e-4)


def test_lists_of_other_lengths_are_refused() -> None:
    with pytest.raises(UserError, match=r"got 1 and 2 scores of 1 and 1 lengths"):
        length_controlled([1.0], [1.0, 2.0], [1.0], [1.0])


def test_a_report_says_both_rates() -> None:
    """What reports of a policy trained by RLHF say (rlhf-workflow, summarize-hf): two longer answers of which one wins, two shorter ones likewise;
    logits 0 and 0: 1/2 at equal length. Of three longer winners and a shorter loser the raw rate is 3/4, and length says it all."""
    ours, theirs = [(1.0, 9.0), (-1.0, 9.0), (1.0, 3.0), (-1.0, 3.0)], [(0.0, 6.0)] * 4
    assert against(ours, theirs) == pytest.approx({"win_rate": 0.5, "length_controlled": 0.5})
    found = against([(1.0, 9.0), (1.0, 9.0), (1.0, 9.0), (-1.0, 3.0)], theirs)
    assert found["win_rate"] == 0.75 and found["length_controlled"] < 0.75
