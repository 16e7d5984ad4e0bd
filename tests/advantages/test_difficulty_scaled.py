"""GRPO-S by hand, what it leaves alone, and pairs of inverse RL."""

from __future__ import annotations

import math

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.advantages.grpo import grpo
from posttrain.core.batch import Batch
from posttrain.core.sampling import Sampling
from posttrain.runs.in_memory import row
from posttrain.systems.reward_shaping_safety.dr_irl import difficulty_scaled, grpo_s, irl_pairs


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def batch(**info: list[float]) -> Batch:
    """Two prompts: rewards 1 and 3 to the one, 0 and 4 to the other, and a failed row of the first."""
    mask = torch.tensor([[1.0], [1.0], [1.0], [1.0], [0.0]], dtype=torch.float64)
    reward = torch.tensor([[1.0], [3.0], [0.0], [4.0], [math.nan]], dtype=torch.float64)
    found = {f"reward:{k}_B": torch.tensor(v, dtype=torch.float64) for k, v in info.items()}
    group = torch.tensor([0, 0, 1, 1, 0])
    return Batch(logp_BT=torch.zeros_like(mask), mask_BT=mask, reward_BT=reward, group_B=group, **found)


def credit(got: torch.Tensor) -> list[float]:
    return [float(x) for x in got[:, 0]]


SQRT = math.sqrt(0.5)  # two answers: -1 and 1 over the unbiased std sqrt 2


@pytest.mark.derived("advantage/difficulty-scaled")
def test_prompts_with_unlike_answers_get_more_credit() -> None:
    # similarities .2, .8 and .9, .9: d = 1 - .5 = .5 and .1, their mean .3: h = sigmoid(.5) / sigmoid(.3) = 1.08356 and
    # sigmoid(.1) / sigmoid(.3) = .91384; siblings share h, whatever their own similarity
    found = batch(similarity=[0.2, 0.8, 0.9, 0.9, math.nan])
    hard, easy = sigmoid(0.5) / sigmoid(0.3) * SQRT, sigmoid(0.1) / sigmoid(0.3) * SQRT
    assert credit(difficulty_scaled(found, eps=0.0)) == pytest.approx([-hard, hard, -easy, easy, 0.0])
    assert hard / easy == pytest.approx(1.08356 / 0.91384, abs=1e-4)


@pytest.mark.derived("advantage/difficulty-scaled")
def test_outliers_among_the_gaps_are_left_out() -> None:
    # gaps 4 - 1, 4 - 3, 4 - 0, 4 - 4 = 3, 1, 4, 0, mean 2, squares 1, 1, 4, 4; tau = 2 leaves 3 and 1: mean 2, so m = 1
    same = batch(demonstration=[4.0, 4.0, 4.0, 4.0, math.nan])
    assert credit(difficulty_scaled(same, tau=2.0, eps=0.0)) == pytest.approx([-SQRT, SQRT, -SQRT, SQRT, 0.0])
    # demonstrations worth 4, 4, 4, 8: gaps 3, 1, 4, 4, mean 3, squares 0, 4, 1, 1; without the 1: mean 11/3
    m = sigmoid(11 / 3) / sigmoid(3.0)
    got = difficulty_scaled(batch(demonstration=[4.0, 4.0, 4.0, 8.0, math.nan]), tau=2.0, eps=0.0)
    assert credit(got) == pytest.approx([-m * SQRT, m * SQRT, -m * SQRT, m * SQRT, 0.0])


def test_both_factors_multiply() -> None:
    found = batch(similarity=[0.2, 0.8, 0.9, 0.9, 0.0], demonstration=[4.0, 4.0, 4.0, 8.0, 0.0])
    h, m = sigmoid(0.5) / sigmoid(0.3), sigmoid(11 / 3) / sigmoid(3.0)
    assert credit(difficulty_scaled(found, tau=2.0, eps=0.0))[1] == pytest.approx(h * m * SQRT)


def test_alike_prompts_are_plain_grpo() -> None:
    torch.testing.assert_close(difficulty_scaled(batch()), grpo(batch()))
    torch.testing.assert_close(difficulty_scaled(batch(similarity=[0.4] * 5)), grpo(batch()))
    nobody = batch(demonstration=[4.0] * 5).rows(torch.tensor([4]))  # only the failed row
    assert credit(difficulty_scaled(nobody)) == [0.0]


def test_the_method_reads_it() -> None:
    assert grpo_s.advantage.card.name == "difficulty-scaled"


def test_irl_pairs_put_the_demonstration_above_ones_own() -> None:
    policy = TabularPolicy(1, 1, 2)
    made = irl_pairs(policy, [row(0, demonstration="a")], Sampling(), n=16)
    assert 0 < len(made) < 16 and all(p.info["chosen"] == "a" and p.info["rejected"] == "b" for p in made)
    assert len({p.id for p in made}) == len(made)
