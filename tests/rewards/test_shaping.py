"""KL in the reward, at a fixed and at an adaptive price."""

from __future__ import annotations

import json
import math

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

# Row 0: old - ref = 1, -2, the outcome 5 on its last token. Row 1: one token, 3, outcome 0, padding. Row 2 failed.
OLD = [[-1.0, -3.0], [-1.0, 7.0], [-1.0, -1.0]]
REF = [[-2.0, -1.0], [-4.0, math.nan], [-1.0, -9.0]]
REWARD = [[0.0, 5.0], [0.0, 0.0], [math.nan, math.nan]]


def batch() -> Batch:
    old, ref, reward = (torch.tensor(x, dtype=torch.float64) for x in (OLD, REF, REWARD))
    mask = torch.tensor([[1, 1], [1, 0], [0, 0]], dtype=torch.float64)
    return Batch(logp_BT=torch.zeros_like(mask), mask_BT=mask, old_logp_BT=old, ref_logp_BT=ref, reward_BT=reward)


@pytest.mark.derived("shaping/kl-in-reward")
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", [[-0.1, 5.2], [-0.3, 0.0]]),  # minus .1 times 1, -2, 3
        ("k2", [[-0.05, 4.8], [-0.45, 0.0]]),  # halves of squares: .5, 2, 4.5
        # exp(-d) - 1 + d: exp(-1); exp(2) - 3; exp(-3) + 2
        ("k3", [[-0.1 * math.exp(-1), 5 - 0.1 * (math.exp(2) - 3)], [-0.1 * (math.exp(-3) + 2), 0.0]]),
    ],
)
def test_kl_in_reward(kind: str, expected) -> None:
    reward_BT = kl_in_reward(batch(), coef=0.1, kind=kind)
    torch.testing.assert_close(reward_BT[:2], torch.tensor(expected, dtype=torch.float64))
    assert reward_BT[2].isnan().all()  # failed stays failed


def test_kl_in_reward_leaves_its_input_alone() -> None:
    before = batch()
    kl_in_reward(before)
    torch.testing.assert_close(before["reward_BT"], batch()["reward_BT"], equal_nan=True)


@pytest.mark.derived("shaping/adaptive-kl")
def test_adaptive_kl_pays_the_present_price_then_moves_it() -> None:
    # KL of the two valid answers: 1 - 2 = -1 and 3, mean 1. Target .5: error 1/.5 - 1 = 1, clipped to .2.
    # The price .1 becomes .1 (1 + .2 * 2 / 100) = .1004; this batch still pays .1.
    part = find("adaptive_kl(coef=0.1, target=0.5, horizon=100)", "shaping").live()
    torch.testing.assert_close(part(batch())[:2], kl_in_reward(batch(), coef=0.1)[:2])
    assert part.coef == pytest.approx(0.1004)
    torch.testing.assert_close(part(batch())[:2], kl_in_reward(batch(), coef=0.1004)[:2])


@pytest.mark.derived("shaping/adaptive-kl")
@pytest.mark.parametrize(
    ("target", "factor"),
    [(1.0, 1.0), (0.9, 1 + (1 / 0.9 - 1) * 0.02), (2.0, 1 - 0.2 * 0.02), (1.1, 1 + (1 / 1.1 - 1) * 0.02)],
)  # on target; a little above: not clipped; half of it: clipped at -.2; a little below
def test_adaptive_kl_rule(target: float, factor: float) -> None:
    part = find("adaptive_kl", "shaping").but(coef=0.1, target=target, horizon=100.0).live()
    part(batch())
    assert part.coef == pytest.approx(0.1 * factor)


def test_adaptive_kl_finds_the_price_that_keeps_kl_on_target() -> None:
    # an answer whose KL falls as the price rises, KL = 1 / coef: the fixed point for target 4 is coef = .25
    part = find("adaptive_kl", "shaping").but(coef=1.0, target=4.0, horizon=100.0).live()
    for _ in range(400):
        part.update(1 / part.coef, answers=32)
    assert part.coef == pytest.approx(0.25, rel=1e-3)


def test_adaptive_kl_state_is_plain_json_and_resumes() -> None:
    one = find("adaptive_kl", "shaping").but(target=0.5).live()
    one(batch())
    other = find("adaptive_kl", "shaping").but(target=0.5).live()
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    torch.testing.assert_close(one(batch()), other(batch()), equal_nan=True)
    assert one.coef == other.coef != 0.2


def test_adaptive_kl_learns_nothing_from_a_batch_of_failures() -> None:
    part = find("adaptive_kl", "shaping").live()
    part(batch().but(mask_BT=torch.zeros(3, 2, dtype=torch.float64)))
    assert part.coef == 0.2


def test_errors_name_the_stream_and_the_kind() -> None:
    with pytest.raises(UserError, match="ref_logp_BT"):
        kl_in_reward(batch().but(ref_logp_BT=None))
    with pytest.raises(UserError, match="no KL estimate named 'abs'"):
        kl_in_reward(batch(), kind="abs")
