"""C-RLFT's weights by hand: a mean in which a row counts as much as its class is worth."""

from __future__ import annotations

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.losses.aggregate import Totals, token_mean
from posttrain.losses.objective import objective
from posttrain.losses.policy.reinforce import reinforce
from posttrain.systems.supervised_from_reward.openchat_crlft import class_weight
from tests.losses.table import batch_of

LOGP = [[-1.0, -3.0], [-2.0, -2.0, -2.0, -4.0]]  # an expert answer of 2 tokens, another of 4


def rows():
    batch = batch_of(LOGP)
    reward_BT = torch.zeros_like(batch.mask_BT)
    reward_BT[0, 1], reward_BT[1, 3] = 1.0, 0.1
    return batch.but(reward_BT=reward_BT)


@pytest.mark.derived("advantage/class-weight")
def test_the_token_mean_is_the_weighted_mean() -> None:
    # sum of w |y| = 1 * 2 + 0.1 * 4 = 2.4, N = 6: A = 6 / 2.4 = 2.5 and 0.25
    # L = (1 * 4 + 0.1 * 10) / 2.4 = 5 / 2.4 = 2.083333; dL/dlogp = -1 / 2.4 = -0.416667 and -0.1 / 2.4 = -0.041667
    batch = rows()
    adv_BT = class_weight(batch)
    torch.testing.assert_close(adv_BT[0, :2].tolist(), [2.5, 2.5], rtol=1e-6, atol=0)
    torch.testing.assert_close(adv_BT[1].tolist(), [0.25] * 4, rtol=1e-6, atol=0)
    logp_BT = batch.logp_BT.clone().requires_grad_()
    whole = batch.but(adv_BT=adv_BT, logp_BT=logp_BT)
    loss, _ = objective(whole, Totals.of(whole), reinforce, token_mean)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(5 / 2.4, rel=1e-6)
    torch.testing.assert_close(logp_BT.grad[0, :2].tolist(), [-1 / 2.4] * 2, rtol=1e-6, atol=0)
    torch.testing.assert_close(logp_BT.grad[1].tolist(), [-0.1 / 2.4] * 4, rtol=1e-6, atol=0)


@pytest.mark.derived("advantage/class-weight")
def test_per_answer_length_does_not_count() -> None:
    # w / |y|: 1/2 and 0.1/4; their sum over tokens is 1 + 0.1 = 1.1: A = 0.5 * 6 / 1.1 and 0.025 * 6 / 1.1
    adv_BT = class_weight(rows(), per="answer")
    torch.testing.assert_close(adv_BT[:, 0].tolist(), [3.0 / 1.1, 0.15 / 1.1], rtol=1e-6, atol=0)


def test_rows_that_are_worth_nothing_pull_nothing() -> None:
    batch = rows()
    assert float(class_weight(batch.but(reward_BT=torch.zeros_like(batch.mask_BT))).abs().sum()) == 0


def test_another_way_to_count_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'token'"):
        class_weight(rows(), per="tokens")
