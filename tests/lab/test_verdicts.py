"""Bootstrap and verdicts: cases worked by hand, and a claim with its sign turned must fail."""

import pytest

from posttrain.core.errors import UserError
from posttrain.lab.bootstrap import differences, interval, resampled_means
from posttrain.lab.claim import Check, Claim
from posttrain.lab.experiment import experiment


def made(better: str, worse: str, margin: float = 0.0, lower: bool = False) -> Claim:
    arms = {"high": lambda seed: {"score": 1.0 + 0.01 * seed}, "low": lambda seed: {"score": 0.5 + 0.01 * seed}}
    checks = (Check("c", "score", better, worse, margin, lower),)
    return Claim("x", "X", "", "says", "experiment", arms, checks, seeds=(0, 1, 2, 3))


def test_the_right_direction_is_shown_and_the_wrong_one_is_not():
    right, wrong = experiment(made("high", "low", 0.4)), experiment(made("low", "high"))
    assert right.shown and not wrong.shown
    assert right.findings[0].difference == pytest.approx(0.5)  # paired: the seed's own part drops out
    assert right.findings[0].low == pytest.approx(0.5) and wrong.findings[0].high == pytest.approx(-0.5)


def test_a_margin_above_the_effect_is_not_shown():
    assert not experiment(made("high", "low", 0.6)).shown


def test_lower_is_better_turns_the_sign():
    assert experiment(made("low", "high", 0.4, lower=True)).shown
    assert not experiment(made("high", "low", 0.4, lower=True)).shown


def test_interval_of_two_values():
    # two values 0 and 1: means of two draws are 0, 1/2, 1 with 1/4, 1/2, 1/4, so the central 95% is all of [0, 1]
    assert interval([0.0, 1.0]) == (0.0, 1.0)
    means = resampled_means([0.0, 1.0])
    assert abs(float((means == 0.5).double().mean()) - 0.5) < 0.05


def test_equal_values_give_a_point():
    assert interval([3.0, 3.0, 3.0]) == (3.0, 3.0)


def test_unpaired_arms_are_refused():
    with pytest.raises(UserError, match="cannot be paired"):
        differences([1.0], [1.0, 2.0])


def test_a_claim_must_be_able_to_fail():
    with pytest.raises(UserError, match="cannot fail"):
        Claim("x", "X", "", "", "", {"a": lambda s: {}}, ())
    with pytest.raises(UserError, match="did you mean 'low'"):
        made("high", "lwo")
