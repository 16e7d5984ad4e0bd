"""Advantages of GRPO's relatives by hand: Lite PPO, OPO, GPG, MaxRL, pass@k, covariance clipping, adaptive lambda."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch

from posttrain.advantages.dr_grpo import dr_grpo
from posttrain.advantages.gae import gae
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.systems.policy_gradient.clip_cov import covariance
from posttrain.systems.policy_gradient.clip_cov import mark_high_covariance as kl_cov
from posttrain.systems.policy_gradient.clip_cov import without_high_covariance as clip_cov
from posttrain.systems.policy_gradient.gpg import rescaled_to_the_live as gpg
from posttrain.systems.policy_gradient.lite_ppo import group_mean_batch_std as lite_ppo
from posttrain.systems.policy_gradient.maxrl import over_the_mean as maxrl
from posttrain.systems.policy_gradient.opo import length_weighted as opo
from posttrain.systems.policy_gradient.pass_at_k_training import best_of_k as pass_at_k_training
from posttrain.systems.policy_gradient.vapo import length_adaptive_gae
from tests.advantages.test_advantages import GROUPS, NAN, REWARDS, close, outcomes, rewarded

# REWARDS, GROUPS: group 5 earned 1, 0, 0, 1 (mean .5), group 2 earned 4, 1 (mean 2.5), in the order 1, 4, 0, 0, 1, 1
CENTRED = [0.5, 1.5, -0.5, -0.5, -1.5, 0.5]


@pytest.mark.derived("advantage/lite-ppo")
def test_lite_ppo() -> None:
    # the batch: 1, 4, 0, 0, 1, 1: mean 7/6, sum of squares 19, variance (19 - 49/6) / 5 = 13/6
    std = math.sqrt(13 / 6) + 1e-4
    close(lite_ppo(outcomes(REWARDS, GROUPS)), [[x / std] for x in CENTRED])
    # centred: squares .25 * 4 + 2.25 * 2 = 5.5, over 5
    std = math.sqrt(5.5 / 5) + 1e-4
    close(lite_ppo(outcomes(REWARDS, GROUPS), centred=True), [[x / std] for x in CENTRED])


def test_lite_ppo_does_not_blow_up_what_siblings_hardly_differ_in() -> None:
    # group 1 differs by .01 only; the batch 0, 1, 1, 1.01 has std near .5, so its credit stays near .01
    adv_B = lite_ppo(outcomes([0.0, 1.0, 1.0, 1.01], [0, 0, 1, 1])).flatten()
    assert 0.005 < float(adv_B[3]) < 0.02 and float(adv_B[1]) > 0.9


def test_lite_ppo_of_equals_of_one_and_with_a_failed_row() -> None:
    close(lite_ppo(outcomes([2.0, 2.0], [0, 0])), [[0.0], [0.0]])
    close(lite_ppo(outcomes([2.0], [0])), [[0.0]])
    close(
        lite_ppo(outcomes([1.0, 0.0, NAN], [0, 0, 0], dead=(2,)))[:2], lite_ppo(outcomes([1.0, 0.0], [0, 0])).tolist()
    )


def test_lite_ppo_is_dr_grpo_in_other_units() -> None:
    batch = outcomes(REWARDS, GROUPS)
    ratio_B1 = lite_ppo(batch) / dr_grpo(batch)
    torch.testing.assert_close(ratio_B1, ratio_B1[:1].expand_as(ratio_B1))


# ---- OPO, GPG, MaxRL


def sized(rewards, lengths, groups) -> Batch:
    """Answers of these lengths with the outcome on the last token."""
    T = max(lengths)
    mask = [[1.0] * n + [0.0] * (T - n) for n in lengths]
    reward = [[0.0] * (n - 1) + [r] + [0.0] * (T - n) for r, n in zip(rewards, lengths, strict=True)]
    return rewarded(reward, mask, groups)


@pytest.mark.derived("advantage/opo")
def test_opo() -> None:
    # lengths 1, 3, rewards 1, 0: baseline 1/4, credit 3/4 and -1/4; alone in its group: 0. Weighted by length: sum 0
    adv_BT = opo(sized([1.0, 0.0, 5.0], [1, 3, 2], [0, 0, 1]))
    close(adv_BT, [[0.75, 0.0, 0.0], [-0.25, -0.25, -0.25], [0.0, 0.0, 0.0]])
    assert float(adv_BT.sum()) == 0.0


def test_opo_of_equal_lengths_is_dr_grpo_and_failed_siblings_are_none() -> None:
    batch = outcomes(REWARDS, GROUPS)
    torch.testing.assert_close(opo(batch), dr_grpo(batch))
    close(opo(outcomes([1.0, 0.0, NAN], [0, 0, 0], dead=(2,))), [[0.5], [-0.5], [0.0]])


@pytest.mark.derived("advantage/gpg")
def test_gpg() -> None:
    # groups 0 (1, 0) and 1 (1, 1): 2 of 4 answers teach nothing: alpha = 2, credit 2 * .5
    close(gpg(outcomes([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1])), [[1.0], [-1.0], [0.0], [0.0]])
    close(gpg(outcomes([1.0, 0.0, NAN, 1.0], [0, 0, 1, 1], dead=(2,))), [[0.75], [-0.75], [0.0], [0.0]])  # 3 / 2
    close(gpg(outcomes([1.0, 1.0], [0, 0])), [[0.0], [0.0]])
    batch = outcomes(REWARDS, GROUPS)
    torch.testing.assert_close(gpg(batch), dr_grpo(batch))  # everybody teaches: alpha = 1


@pytest.mark.derived("advantage/maxrl")
def test_maxrl() -> None:
    # solved 1 in 4: mean 1/4: credit (3/4) / (1/4) = 3 and -1; solved always or never: 0
    adv_BT = maxrl(outcomes([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], [0, 0, 0, 0, 1, 1, 2, 2]), eps=0.0)
    close(adv_BT, [[3.0], [-1.0], [-1.0], [-1.0], [0.0], [0.0], [0.0], [0.0]])
    close(maxrl(outcomes([-1.0, 0.5], [0, 0])), [[0.0], [0.0]])  # earned less than nothing: no likelihood to raise


def test_maxrl_is_the_gradient_of_the_log_of_the_mean() -> None:
    # d log m / d s with p_i = softmax-free scores: sum_i A_i s_i / N has the gradient of log mean_i (R_i e^{s_i} / e^{s_i})
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    score = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    weight = torch.softmax(score, 0)
    (grad,) = torch.autograd.grad(torch.log((weight * rewards).sum()), score)
    close(maxrl(outcomes(rewards.tolist(), [0] * 5), eps=0.0) / 5, grad.unsqueeze(-1).tolist())


# ---- pass@k


@pytest.mark.derived("advantage/pass-at-k-training")
def test_pass_at_k_is_the_papers_closed_form() -> None:
    # N = 5, 2 right, k = 2: R = 1 - C(3,2)/C(5,2) = .7, sigma = sqrt(.21)
    # right: (1 - .7) / sigma; wrong: (1 - .7 - C(2,1)/C(4,1)) / sigma = -.2 / sigma
    sigma = math.sqrt(0.21) + 1e-4
    right, wrong = 0.3 / sigma, -0.2 / sigma
    adv_BT = pass_at_k_training(outcomes([1.0, 0.0, 0.0, 1.0, 0.0], [0] * 5), k=2)
    close(adv_BT, [[right], [wrong], [wrong], [right], [wrong]])


def test_pass_at_k_against_every_subset() -> None:
    rewards, k = [0.3, -1.0, 2.0, 0.3, 0.9, 0.0], 3
    best = {s: max(rewards[i] for i in s) for s in combinations(range(6), k)}
    mean = sum(best.values()) / len(best)
    std = math.sqrt(sum((b - mean) ** 2 for b in best.values()) / len(best))
    mine = [[b for s, b in best.items() if i in s] for i in range(6)]
    expected = [[(sum(m) / len(m) - mean) / (std + 1e-4)] for m in mine]
    close(pass_at_k_training(outcomes(rewards, [0] * 6), k=k), expected)


def test_pass_at_k_edges() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0]
    # k = 1: (R - mean) over the plain std, .5
    close(pass_at_k_training(outcomes(rewards, [0] * 4), k=1), [[x / (0.5 + 1e-4)] for x in (0.5, -0.5, -0.5, 0.5)])
    close(pass_at_k_training(outcomes(rewards, [0] * 4), k=4), [[0.0]] * 4)  # only one subset
    close(pass_at_k_training(outcomes([1.0, 1.0, 1.0], [0] * 3), k=2), [[0.0]] * 3)
    with pytest.raises(UserError, match="k=0"):
        pass_at_k_training(outcomes(rewards, [0] * 4), k=0)


# ---- covariance

# Two answers, one right: credit +a, -a with a = .5 / (sqrt(1/2) + 1e-4). old_logp 0, -4 and -2, -2: mean -2.
# cov: (2)(a), (-2)(a), 0, 0: one token has a covariance of 2 a = 1.41, one of -2 a
A = 0.5 / (math.sqrt(0.5) + 1e-4)
COV = {"reward_BT": [[0.0, 1.0], [0.0, 0.0]], "mask_BT": [[1, 1], [1, 1]], "group_B": [0, 0]}


@pytest.mark.derived("advantage/clip-cov")
def test_clip_cov_takes_the_credit_of_the_token_that_is_likely_and_credited() -> None:
    batch = rewarded(**COV, old_logp=[[0.0, -4.0], [-2.0, -2.0]])
    credit_BT = torch.tensor([[A, A], [-A, -A]], dtype=torch.float64)
    close(covariance(batch["old_logp_BT"], credit_BT, batch.mask_BT), [[2 * A, -2 * A], [0.0, 0.0]])
    close(clip_cov(batch), [[0.0, A], [-A, -A]])  # 1 <= 1.41 <= 5
    close(clip_cov(batch, low=1.5), [[A, A], [-A, -A]])  # below the bounds
    close(clip_cov(batch, high=1.2), [[A, A], [-A, -A]])  # above them
    assert clip_cov(batch, low=-9.0, ratio=0.5).flatten().tolist().count(0.0) >= 2  # half of four tokens


@pytest.mark.derived("advantage/kl-cov")
def test_kl_cov_marks_the_same_token_and_keeps_its_credit() -> None:
    adv_BT, _, mark_BT = kl_cov(rewarded(**COV, old_logp=[[0.0, -4.0], [-2.0, -2.0]]))
    close(adv_BT, [[A, A], [-A, -A]])
    close(mark_BT, [[1.0, 0.0], [0.0, 0.0]])


# ---- length-adaptive GAE
WRONG = torch.tensor([[1.0], [0.0]])  # the second answer earns nothing


@pytest.mark.derived("advantage/length-adaptive-gae")
def test_length_adaptive_gae() -> None:
    # alpha .5: two tokens: lam = 1 - 1/(.5 * 2) = 0, the surprise alone: 2 - 1 = 1, 4 - 2 = 2
    # four tokens: lam = 1 - 1/2 = .5; values 0, 1, 1, 2, reward 4: surprises 1, 0, 1, 2:
    #   A3 = 2, A2 = 1 + 1 = 2, A1 = 0 + 1 = 1, A0 = 1 + .5 = 1.5; targets: what was still to come, 4 everywhere
    batch = rewarded(
        [[0.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 4.0]], [[1, 1, 0, 0], [1, 1, 1, 1]], [0, 1],
        old_value=[[1.0, 2.0, 9.0, 9.0], [0.0, 1.0, 1.0, 2.0]],
    )  # fmt: skip
    adv_BT, return_BT, mark_BT = length_adaptive_gae(batch, alpha=0.5, whiten=False)
    close(adv_BT, [[1.0, 2.0, 0.0, 0.0], [1.5, 1.0, 2.0, 2.0]])
    close(return_BT, [[4.0, 4.0, 0.0, 0.0], [4.0] * 4])
    close(mark_BT, [[1.0, 1.0, 0.0, 0.0], [1.0] * 4])  # both are right: every token counts once
    one = (
        length_adaptive_gae(batch, bar=5.0)[2],
        length_adaptive_gae(batch.but(reward_BT=batch["reward_BT"] * WRONG))[2],
    )
    close(one[0], [[0.0] * 4] * 2)  # none is
    close(one[1], [[3.0, 3.0, 0.0, 0.0], [0.0] * 4])  # 6 tokens, 2 of them of a right answer


def test_length_adaptive_gae_is_gae_at_its_lambda() -> None:
    # 40 tokens, alpha .05: lam = 1 - 1/2
    draw = torch.Generator().manual_seed(0)
    value = torch.randn(1, 40, generator=draw).tolist()
    batch = rewarded([[0.0] * 39 + [1.0]], [[1] * 40], [0], old_value=value)
    torch.testing.assert_close(length_adaptive_gae(batch)[0], gae(batch, lam=0.5)[0])
