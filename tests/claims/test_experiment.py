"""Verdicts: a claim can be shown, and can fail."""

from __future__ import annotations

import math

import pytest
import torch

from claims.machinery.claim import Check, Claim
from claims.machinery.experiment import experiment, find_out
from posttrain.core.errors import UserError

NOISE = (0.0, 0.3, -0.2, 0.1, -0.1)


def arm(offset: float):
    return lambda seed: {"reward": 10 * seed + offset + NOISE[seed % 5], "kl": offset}


def a_claim(*checks: Check, seeds: tuple[int, ...] = (0, 1, 2, 3, 4), **arms: float) -> Claim:
    made = {name: arm(offset) for name, offset in (arms or {"new": 1.0, "old": 0.0}).items()}
    return Claim("test", "Test", "", "new beats old", "two arms", made, checks, seeds=seeds)


def test_a_real_effect_is_shown() -> None:
    """Both arms carry the seed's own 10 s, which pairing removes: the difference is 1 on every seed."""
    result = experiment(a_claim(Check("new > old", "reward", "new", "old", margin=0.5)))
    (finding,) = result.findings
    assert result.shown
    assert (finding.difference, finding.low, finding.high) == (pytest.approx(1.0),) * 3
    assert result.values["old"]["reward"] == [0.0, 10.3, 19.8, 30.1, 39.9]


def test_the_inverted_sign_is_not_shown() -> None:
    assert not experiment(a_claim(Check("old > new", "reward", "old", "new"))).shown
    assert not experiment(a_claim(Check("new > old", "reward", "new", "old"), new=-1.0, old=0.0)).shown


def test_the_margin_counts_and_equality_is_not_enough() -> None:
    assert not experiment(a_claim(Check("more than 1", "kl", "new", "old", margin=1.0))).shown
    assert experiment(a_claim(Check("more than 0.99", "kl", "new", "old", margin=0.99))).shown
    assert not experiment(a_claim(Check("equal arms", "kl", "new", "old"), new=1.0, old=1.0)).shown


def test_noise_alone_is_not_shown() -> None:
    """Differences of 0, 0.3, -0.2, 0.1, -0.1 have the mean 0.02: the interval holds 0."""
    values = {"new": {"reward": list(NOISE)}, "old": {"reward": [0.0] * 5}}
    finding = find_out(Check("new > old", "reward", "new", "old"), values)
    assert finding.low < 0 < finding.high and not finding.shown


def test_not_worse_than_a_margin_below_zero() -> None:
    assert experiment(a_claim(Check("not worse by 0.2", "kl", "new", "old", margin=-0.2), new=-0.1, old=0.0)).shown
    assert not experiment(
        a_claim(Check("not worse by 0.05", "kl", "new", "old", margin=-0.05), new=-0.1, old=0.0)
    ).shown


def test_lower_is_better_when_said_so_and_arms_may_face_a_number() -> None:
    assert experiment(a_claim(Check("less KL", "kl", "old", "new", lower=True))).shown
    assert not experiment(a_claim(Check("less KL", "kl", "new", "old", lower=True))).shown
    assert experiment(a_claim(Check("KL below 2", "kl", "new", 2.0, lower=True))).shown
    assert not experiment(a_claim(Check("KL above 2", "kl", "new", 2.0))).shown


def test_one_failed_check_fails_the_claim() -> None:
    good, bad = Check("new > old", "reward", "new", "old"), Check("old > new", "reward", "old", "new")
    result = experiment(a_claim(good, bad))
    assert [f.shown for f in result.findings] == [True, False] and not result.shown


def test_the_threads_come_back() -> None:
    before = torch.get_num_threads()
    seen = []
    claim = a_claim(Check("new > old", "reward", "new", "old"))
    experiment(claim, tell=lambda _: seen.append(torch.get_num_threads()))
    assert set(seen) == {1} and torch.get_num_threads() == before


def test_claims_that_cannot_fail_or_cannot_run_are_refused() -> None:
    with pytest.raises(UserError, match="checks nothing"):
        a_claim()
    with pytest.raises(UserError, match="no arm named 'nwe'; did you mean 'new'"):
        a_claim(Check("x", "reward", "nwe", "old"))
    with pytest.raises(UserError, match="2 seeds"):
        a_claim(Check("x", "reward", "new", "old"), seeds=(0, 1))


def test_a_broken_arm_is_an_error_and_no_verdict() -> None:
    claim = Claim("t", "T", "", "", "", {"a": lambda seed: {"x": math.nan}}, (Check("x > 0", "x", "a", 0.0),))
    with pytest.raises(UserError, match="x of the arm 'a' is not one finite number a seed"):
        experiment(claim)
