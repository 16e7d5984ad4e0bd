"""Verdicts: a claim can be shown, and can fail."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from claims.machinery.claim import Check, Claim, Shared
from claims.machinery.experiment import Outcome, experiment, find_out, gathered, unequal
from claims.machinery.verdict import EXACT, FLAT, RULE
from posttrain.core.errors import UserError

NOISE = (0.0, 0.3, -0.2, 0.1, -0.1)


def arm(offset: float):
    """The seed's own 10 s and noise, which arms share, and a hundredth of noise of each arm's own."""
    return lambda seed: {
        "reward": 10 * seed + NOISE[seed % 5] + near(seed, offset),
        "kl": near(seed, offset),
        "flat": offset,
    }


def near(seed: int, offset: float) -> float:
    return offset + (0.01 * NOISE[seed % 5] if offset > 0.5 else 0.0)


def a_claim(*checks: Check, seeds: tuple[int, ...] = (0, 1, 2, 3, 4), **arms: float) -> Claim:
    made = {name: arm(offset) for name, offset in (arms or {"new": 1.0, "old": 0.0}).items()}
    return Claim("test", "Test", "", "new beats old", "two arms", made, checks, seeds=seeds)


def test_a_real_effect_is_shown() -> None:
    """Both arms carry the seed's own 10 s, which pairing removes: differences of 1, 1.003, 0.998, 1.001, 0.999. Their mean is 1.0002,
    their standard deviation sqrt(1.48e-5 / 4) = 0.0019235, t of 4 degrees at 99.75% is 5.597568: -+ 0.0048152."""
    result = experiment(a_claim(Check("new > old", "reward", "new", "old", margin=0.5)))
    (finding,) = result.findings
    assert result.shown and finding.how == RULE
    assert finding.difference == pytest.approx(1.0002)
    assert (finding.low, finding.high) == (pytest.approx(0.995385, abs=1e-5), pytest.approx(1.005015, abs=1e-5))
    assert result.values["old"]["reward"] == [0.0, 10.3, 19.8, 30.1, 39.9]


def test_equal_on_every_seed_is_not_shown_unless_it_is_exact() -> None:
    """Nothing says how a sampled figure that never varied would vary; an exact one must be above the margin on every seed."""
    check = Check("new > old", "flat", "new", "old", margin=0.5)
    (finding,) = experiment(a_claim(check)).findings
    assert (finding.how, finding.shown, finding.low) == (FLAT, False, 1.0)
    (finding,) = experiment(a_claim(replace(check, exact=True))).findings
    assert (finding.how, finding.shown) == (EXACT, True)
    uneven = {"new": {"flat": [1.0, 1.0, 1.0, 0.5]}, "old": {"flat": [0.0] * 4}}
    found = find_out(replace(check, exact=True), uneven)  # the least is the margin itself, which is not above it
    assert (found.low, found.high, found.shown) == (0.5, 1.0, False)
    with pytest.raises(UserError, match="only tables have such"):
        replace(a_claim(replace(check, exact=True)), level="pocket")


def test_the_inverted_sign_is_not_shown() -> None:
    assert not experiment(a_claim(Check("old > new", "reward", "old", "new"))).shown
    assert not experiment(a_claim(Check("new > old", "reward", "new", "old"), new=-1.0, old=0.0)).shown


def test_the_margin_counts_and_equality_is_not_enough() -> None:
    assert not experiment(a_claim(Check("more than 1", "kl", "new", "old", margin=1.0))).shown
    at = Check("more than 1", "flat", "new", "old", margin=1.0, exact=True)
    assert not experiment(a_claim(at)).shown and experiment(a_claim(replace(at, margin=0.999))).shown
    assert experiment(a_claim(Check("more than 0.99", "kl", "new", "old", margin=0.99))).shown
    assert not experiment(a_claim(Check("equal arms", "kl", "new", "old"), new=1.0, old=1.0)).shown


def test_noise_alone_is_not_shown() -> None:
    """Differences of 0, 0.3, -0.2, 0.1, -0.1 have the mean 0.02: the interval holds 0."""
    values = {"new": {"reward": list(NOISE)}, "old": {"reward": [0.0] * 5}}
    finding = find_out(Check("new > old", "reward", "new", "old"), values)
    assert finding.low < 0 < finding.high and not finding.shown


def test_not_worse_than_a_margin_below_zero() -> None:
    arms = {"new": 0.9, "old": 1.0 - 0.5}  # 0.4 ahead, so 0.4 behind the other way
    assert experiment(a_claim(Check("not worse by 0.5", "kl", "old", "new", margin=-0.5), **arms)).shown
    assert not experiment(a_claim(Check("not worse by 0.3", "kl", "old", "new", margin=-0.3), **arms)).shown


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
    with pytest.raises(UserError, match="x of the arm 'a' is not a finite number on seed 0"):
        experiment(claim)


def spent(arm: str, seed: int = 0, **budget: float) -> Outcome:
    return Outcome(arm, seed, {"x": seed + 0.1 * len(arm)}, budget)


def test_arms_that_share_a_budget_must_have_spent_it_alike() -> None:
    made = [spent("a", samples=640, tokens=1000), spent("b", samples=640, tokens=1150)]
    assert unequal((Shared("samples"), Shared("tokens", within=0.15)), "ab", made) == []
    (told,) = unequal((Shared("tokens", within=0.1),), "ab", made)
    assert told == "tokens of seed 0: 'a' 1,000, 'b' 1,150, allowed to differ by 10%"
    (told,) = unequal((Shared("updates"),), "ab", made)
    assert told == "the arm 'a' does not say how many updates it spent"
    assert unequal((Shared("updates", arms=("b",)),), "ab", [spent("a", updates=1), spent("b", updates=2)]) == []


def test_an_unfair_comparison_has_no_verdict() -> None:
    check, arms = Check("a > b", "x", "a", "b"), {"a": lambda seed: {}, "b": lambda seed: {}}
    claim = Claim("t", "T", "", "", "", arms, (check,), (0, 1, 2), shares=(Shared("samples"),))
    fair = [spent(arm, seed, samples=64) for arm in "ab" for seed in range(3)]
    assert len(gathered(claim, (0, 1, 2), fair).findings) == 1
    with pytest.raises(UserError, match="compares unequal arms: samples of seed 2: 'a' 64, 'b' 128"):
        gathered(claim, (0, 1, 2), [*fair[:-1], spent("b", 2, samples=128)])
    with pytest.raises(UserError, match="1 of 6 runs of t are missing"):
        gathered(claim, (0, 1, 2), fair[:-1])
    with pytest.raises(UserError, match="no budget named 'sample'; did you mean 'samples'"):
        replace(claim, shares=(Shared("sample"),))
