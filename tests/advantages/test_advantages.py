"""Advantages by hand: groups of unequal size, failed rows, environment tokens, and what is equal to what."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.advantages.dr_grpo import dr_grpo
from posttrain.advantages.gae import gae
from posttrain.advantages.grpo import grpo
from posttrain.advantages.ones import ones
from posttrain.advantages.outcome import outcome
from posttrain.advantages.rloo import rloo
from posttrain.advantages.whiten import batch_whiten
from posttrain.core import laws
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.systems.policy_gradient.reinforce_pp import batch_relative as reinforce_pp

NAN = math.nan


def rewarded(reward_BT, mask_BT, group_B, **streams) -> Batch:
    mask = torch.tensor(mask_BT, dtype=torch.float64)
    more = {f"{k}_BT": torch.tensor(v, dtype=torch.float64) for k, v in streams.items()}
    reward = torch.tensor(reward_BT, dtype=torch.float64)
    return Batch(logp_BT=torch.zeros_like(mask), mask_BT=mask, reward_BT=reward, group_B=torch.tensor(group_B), **more)


def outcomes(rewards, groups, dead=()) -> Batch:
    """Answers of one token each; the rows in `dead` failed."""
    mask = [[0.0 if i in dead else 1.0] for i in range(len(rewards))]
    return rewarded([[r] for r in rewards], mask, groups)


def close(got_BT, expected) -> None:
    torch.testing.assert_close(got_BT, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


# Group 5: rewards 1, 0, 0, 1: mean .5, sum of squares 1, unbiased std sqrt(1/3). Group 2: 4, 1: mean 2.5, std sqrt 4.5
REWARDS, GROUPS = [1.0, 4.0, 0.0, 0.0, 1.0, 1.0], [5, 2, 5, 5, 2, 5]


@pytest.mark.derived("advantage/grpo")
def test_grpo() -> None:
    a, b = 0.5 / (math.sqrt(1 / 3) + 1e-4), 1.5 / (math.sqrt(4.5) + 1e-4)
    close(grpo(outcomes(REWARDS, GROUPS)), [[a], [b], [-a], [-a], [-b], [a]])


@pytest.mark.derived("advantage/dr-grpo")
def test_dr_grpo() -> None:
    close(dr_grpo(outcomes(REWARDS, GROUPS)), [[0.5], [1.5], [-0.5], [-0.5], [-1.5], [0.5]])


@pytest.mark.derived("advantage/rloo")
def test_rloo() -> None:
    # group 5: the others of a 1 are 0, 0, 1, mean 1/3: 2/3; of a 0: 1, 0, 1: -2/3. Group 2: 4 - 1 and 1 - 4
    close(rloo(outcomes(REWARDS, GROUPS)), [[2 / 3], [3.0], [-2 / 3], [-2 / 3], [-3.0], [2 / 3]])


@pytest.mark.parametrize("part", [grpo, dr_grpo, rloo])
def test_one_or_equals_get_nothing(part) -> None:
    close(part(outcomes([3.0, 2.0, 2.0], [0, 1, 1])), [[0.0], [0.0], [0.0]])


@pytest.mark.parametrize("part", [grpo, dr_grpo, rloo])
def test_a_failed_sibling_is_no_sibling(part) -> None:
    with_failed = part(outcomes([1.0, 0.0, NAN, 0.0], [0, 0, 0, 0], dead=(2,)))
    without = part(outcomes([1.0, 0.0, 0.0], [0, 0, 0]))
    close(with_failed[[0, 1, 3]], without.tolist())
    assert with_failed[2].item() == 0.0
    # nor is one whose answer was cut off and masked, though it has a reward
    close(part(outcomes([1.0, 0.0, 9.0, 0.0], [0, 0, 0, 0], dead=(2,)))[[0, 1, 3]], without.tolist())
    # two siblings of which one failed: one is left, and has nobody to compare with
    close(part(outcomes([1.0, NAN], [0, 0], dead=(1,))), [[0.0], [0.0]])


def test_rloo_is_dr_grpo_times_g_over_g_minus_1() -> None:
    batch = outcomes([0.3, 1.7, -2.0, 0.4, 0.9], [0] * 5)
    torch.testing.assert_close(rloo(batch), dr_grpo(batch) * 5 / 4)


@pytest.mark.derived("advantage/outcome", "advantage/ones", "advantage/dr-grpo")
def test_outcome_is_spread_over_the_policys_own_tokens() -> None:
    # row 0 earned 1 + 2 (2 on an environment token); row 1 is shorter; row 2 failed
    reward = [[0.0, 1.0, 2.0], [5.0, 0.0, 0.0], [NAN, NAN, NAN]]
    batch = rewarded(reward, [[1, 1, 0], [1, 0, 0], [0, 0, 0]], [0, 0, 0])
    close(outcome(batch), [[3.0, 3.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    close(ones(batch), [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    close(dr_grpo(batch), [[-1.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


@pytest.mark.derived("advantage/reinforce-pp")
def test_reinforce_pp() -> None:
    # Rewards to go. Row 0: -.1, (environment 0), 1 -> .9, 1, 1 of which tokens 0 and 2 count: .9, 1.
    # Row 1: 2 at its only token. Row 2 failed. Over the tokens .9, 1, 2: mean 1.3, variance (.16 + .09 + .49)/3
    reward = [[-0.1, 0.0, 1.0], [2.0, 0.0, 0.0], [NAN, NAN, NAN]]
    batch = rewarded(reward, [[1, 0, 1], [1, 0, 0], [0, 0, 0]], [0, 1, 2])
    std = math.sqrt(0.74 / 3 + 1e-8)
    close(reinforce_pp(batch), [[-0.4 / std, 0.0, -0.3 / std], [0.7 / std, 0.0, 0.0], [0.0, 0.0, 0.0]])


@pytest.mark.derived("advantage/reinforce-pp")
def test_reinforce_pp_weighs_tokens_not_answers() -> None:
    # to go: 1, 1, 1 | 0: mean .75, so the long answer's three tokens pull the mean; std sqrt(3/16)
    batch = rewarded([[0, 0, 1.0], [0.0, 0, 0]], [[1, 1, 1], [1, 0, 0]], [0, 1])
    std = math.sqrt(3 / 16 + 1e-8)
    close(reinforce_pp(batch), [[0.25 / std] * 3, [-0.75 / std, 0.0, 0.0]])


def test_batch_whiten_of_equals_and_of_nothing_is_zero() -> None:
    close(batch_whiten(torch.full((2, 2), 3.0).double(), torch.ones(2, 2)), [[0.0, 0.0], [0.0, 0.0]])
    close(batch_whiten(torch.full((1, 2), NAN).double(), torch.zeros(1, 2)), [[0.0, 0.0]])


# ---- GAE


@pytest.mark.derived("advantage/gae")
def test_gae_by_hand() -> None:
    # gamma .5, lam .5, values 1, 2, 3, reward 0, 0, 4:
    # d2 = 4 + 0 - 3 = 1;           A2 = 1
    # d1 = 0 + .5 * 3 - 2 = -.5;    A1 = -.5 + .25 * 1 = -.25
    # d0 = 0 + .5 * 2 - 1 = 0;      A0 = .25 * -.25 = -.0625;   returns A + V
    batch = rewarded([[0.0, 0.0, 4.0]], [[1, 1, 1]], [0], old_value=[[1.0, 2.0, 3.0]])
    adv_BT, return_BT = gae(batch, gamma=0.5, lam=0.5, whiten=False)
    close(adv_BT, [[-0.0625, -0.25, 1.0]])
    close(return_BT, [[0.9375, 1.75, 4.0]])


@pytest.mark.derived("advantage/gae")
def test_gae_skips_what_the_environment_wrote() -> None:
    # the same three actions, with environment tokens between (value garbage) and one reward of 4 that falls on the
    # environment's last token: it belongs to the action before it; padding after it holds garbage values
    row = {"reward": [[0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0]], "old_value": [[1.0, 9.0, 2.0, -7.0, 3.0, NAN, 8.0]]}
    batch = rewarded(row["reward"], [[1, 0, 1, 0, 1, 0, 0]], [0], old_value=row["old_value"])
    adv_BT, return_BT = gae(batch, gamma=0.5, lam=0.5, whiten=False)
    close(adv_BT, [[-0.0625, 0.0, -0.25, 0.0, 1.0, 0.0, 0.0]])
    close(return_BT, [[0.9375, 0.0, 1.75, 0.0, 4.0, 0.0, 0.0]])


def test_gae_rewards_of_the_environment_in_the_middle() -> None:
    # gamma 1, lam 1, values 0: credit is the reward to go; the 5 on the environment token counts for actions before it
    reward, mask = [[1.0, 5.0, 2.0]], [[1, 0, 1]]
    adv_BT, _ = gae(rewarded(reward, mask, [0], old_value=[[0.0] * 3]), lam=1.0, whiten=False)
    close(adv_BT, [[8.0, 0.0, 2.0]])


def test_gae_with_lam_one_is_return_minus_value() -> None:
    batch = laws.example()
    adv_BT, return_BT = gae(batch, lam=1.0, whiten=False)
    togo_BT = batch["reward_BT"].flip(-1).cumsum(-1).flip(-1)
    inside_BT = batch.mask_BT > 0
    torch.testing.assert_close(adv_BT[inside_BT], (togo_BT - batch["old_value_BT"])[inside_BT])
    torch.testing.assert_close(return_BT[inside_BT], togo_BT[inside_BT])  # Monte Carlo targets


def test_gae_with_lam_zero_is_the_one_step_surprise() -> None:
    # r + V' - V: 0 + 2 - 1, 0 + 3 - 2, 4 - 3
    batch = rewarded([[0.0, 0.0, 4.0]], [[1, 1, 1]], [0], old_value=[[1.0, 2.0, 3.0]])
    close(gae(batch, lam=0.0, whiten=False)[0], [[1.0, 1.0, 1.0]])


def test_gae_of_a_perfect_critic_is_zero() -> None:
    batch = rewarded([[0.0, 0.0, 4.0]], [[1, 1, 1]], [0], old_value=[[4.0, 4.0, 4.0]])
    close(gae(batch, whiten=False)[0], [[0.0, 0.0, 0.0]])


def test_gae_whitens_the_credit_not_the_targets() -> None:
    batch = laws.example()
    (plain_BT, return_BT), (white_BT, same_BT) = gae(batch, whiten=False), gae(batch)
    inside_BT = batch.mask_BT > 0
    torch.testing.assert_close(same_BT, return_BT)
    x = plain_BT[inside_BT]
    expected = (x - x.mean()) / x.std(correction=0)
    torch.testing.assert_close(white_BT[inside_BT], expected, rtol=1e-6, atol=1e-6)


def test_gae_against_the_sum_of_discounted_surprises() -> None:
    # A_t = sum_k (gamma lam)^k d_{t+k}, in plain floats
    rewards, values, gamma, lam = [0.3, -1.0, 0.0, 2.0], [0.5, 0.1, -0.4, 1.1], 0.9, 0.8
    after = [*values[1:], 0.0]
    surprise = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    expected = [sum((gamma * lam) ** k * d for k, d in enumerate(surprise[t:])) for t in range(4)]
    batch = rewarded([rewards], [[1, 1, 1, 1]], [0], old_value=[values])
    close(gae(batch, gamma=gamma, lam=lam, whiten=False)[0], [expected])


def test_errors_name_the_stream() -> None:
    with pytest.raises(UserError, match="old_value_BT"):
        gae(outcomes([1.0], [0]))
    with pytest.raises(UserError, match="group_B"):
        grpo(outcomes([1.0], [0]).but(group_B=None))
