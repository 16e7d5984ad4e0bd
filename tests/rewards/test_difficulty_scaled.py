"""GRPO-S by hand, its negative control, and pairs of inverse RL."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.advantages.grpo import grpo
from posttrain.core.sampling import Sampling
from posttrain.core.types import Batch
from posttrain.lab.fit import row
from posttrain.lab.tabular import TabularPolicy
from posttrain.methods.dr_irl import irl_pairs
from posttrain.rewards.shaping.difficulty_scaled import difficulty_scaled
from tests.losses.table import slopes


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def batch(**info: list[float]) -> Batch:
    """Rewards 1 and 3, and a failed row."""
    mask = torch.tensor([[1.0], [1.0], [0.0]], dtype=torch.float64)
    reward = torch.tensor([[1.0], [3.0], [math.nan]], dtype=torch.float64)
    found = {f"reward:{k}_B": torch.tensor(v, dtype=torch.float64) for k, v in info.items()}
    return Batch(torch.zeros_like(mask), mask, reward_BT=reward, group_B=torch.zeros(3, dtype=torch.long), info=found)


def test_unlike_answers_weigh_more() -> None:
    # similarities .2, .8, mean .5, k = 2: h = 2 sigmoid(.6) = 1.29131 and 2 sigmoid(-.6) = .70869
    got = difficulty_scaled(batch(similarity=[0.2, 0.8, math.nan]), k=2.0)
    assert got[:2, 0].tolist() == pytest.approx([2 * sigmoid(0.6), 3 * 2 * sigmoid(-0.6)])
    assert got[2].isnan().all()


def test_room_to_learn_weighs_more_up_to_the_cap() -> None:
    # gaps 6 - 1 = 5 and 6 - 3 = 3, mean 4: off by 1 and -1; cap .5: g = 2 sigmoid(2 * .5) and 2 sigmoid(-2)
    got = difficulty_scaled(batch(demonstration=[6.0, 6.0, math.nan]), k=2.0, cap=0.5)
    assert got[:2, 0].tolist() == pytest.approx([2 * sigmoid(1.0), 3 * 2 * sigmoid(-2.0)])


def test_both_factors_and_the_slope_by_reward() -> None:
    # d/dr of the whole, means included, in plain floats; r = 1 and 3, similarities .2 and .8, demonstrations 6
    def total(rows: list[list[float]]) -> float:
        r = [x[0] for x in rows]
        gaps = [6 - x for x in r]
        mean = sum(gaps) / 2
        hard = [2 * sigmoid(2 * 0.3), 2 * sigmoid(-2 * 0.3)]
        return sum(h * 2 * sigmoid(2 * min(g - mean, 1.5)) * x for h, g, x in zip(hard, gaps, r, strict=True))

    found = batch(similarity=[0.2, 0.8, 0.0], demonstration=[6.0, 6.0, 6.0])
    leaf = found.reward_BT.clone().requires_grad_()
    out = difficulty_scaled(found.but(reward_BT=leaf), cap=1.5)[:2].sum()
    (grad,) = torch.autograd.grad(out, leaf)
    assert float(out.detach()) == pytest.approx(total([[1.0], [3.0]]))
    torch.testing.assert_close(grad[:2].tolist(), slopes(total, [[1.0], [3.0]]), rtol=1e-5, atol=1e-7)


def test_one_factor_for_all_is_plain_grpo() -> None:
    # the negative control: equal similarities scale everybody alike, which dividing by the spread undoes
    same = batch(similarity=[0.4, 0.4, math.nan])
    scaled = grpo(same.but(reward_BT=difficulty_scaled(same)))
    torch.testing.assert_close(scaled, grpo(batch()))
    torch.testing.assert_close(difficulty_scaled(batch())[:2], batch().reward_BT[:2])


def test_irl_pairs_put_the_demonstration_above_ones_own() -> None:
    policy = TabularPolicy(1, 1, 2)
    made = irl_pairs(policy, [row(0, demonstration="a")], Sampling(), n=16)
    assert 0 < len(made) < 16 and all(p.info["chosen"] == "a" and p.info["rejected"] == "b" for p in made)
    assert len({p.id for p in made}) == len(made)
