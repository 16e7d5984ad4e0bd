"""Intuitive fine-tuning by hand: the weights, and the gradient that flows through them."""

from __future__ import annotations

import pytest
import torch

from posttrain.losses.aggregate import Totals, sequence_mean
from posttrain.losses.objective import objective
from posttrain.systems.supervised_from_reward.ift import propagated
from tests.losses.table import batch_of


def found(gamma: float, rows: list[list[float]]) -> tuple[torch.Tensor, float, torch.Tensor]:
    batch = batch_of(rows, mixed_logp=rows)
    logp = batch["mixed_logp_BT"].clone().requires_grad_()
    live = batch.but(mixed_logp_BT=logp)
    loss_BT = propagated.but(gamma=gamma)(live)
    loss, _ = objective(live, Totals.of(live), propagated.but(gamma=gamma), sequence_mean)
    loss.backward()
    return loss_BT.detach(), float(loss.detach()), logp.grad


@pytest.mark.derived("supervised_loss/ift")
def test_early_tokens_answer_for_later_errors() -> None:
    # CE = 1, 2, gamma = .5: c = 1 + .5 * 2 = 2 and 2, sum 4: w = 1 and 1;  L_t = 1, 2, mean 1.5
    # L = (c1 CE1 + c2 CE2) / (c1 + c2) = N / S, N = CE1^2 + .5 CE1 CE2 + CE2^2 = 6, S = CE1 + 1.5 CE2 = 4
    # dL/dCE1 = ((2 + 1) 4 - 6) / 16 = .375;  dL/dCE2 = ((.5 + 4) 4 - 6 * 1.5) / 16 = .5625;  by logp the other sign
    loss_BT, loss, grad_BT = found(0.5, [[-1.0, -2.0]])
    torch.testing.assert_close(loss_BT, torch.tensor([[1.0, 2.0]]).double())
    assert loss == pytest.approx(1.5)
    torch.testing.assert_close(grad_BT, torch.tensor([[-0.375, -0.5625]]).double())


@pytest.mark.derived("supervised_loss/ift")
def test_weights_are_not_constants_and_have_the_mean_one() -> None:
    # CE = 3, 1, gamma = 1: c = 4, 1, sum 5: w = 1.6, .4;  L_t = 4.8, .4;  an answer of one token weighs 1 whatever it lost
    # N = 9 + 3 + 1 = 13, S = 3 + 2 = 5: dL/dCE1 = ((6 + 1) 5 - 13) / 25 = .88, dL/dCE2 = ((3 + 2) 5 - 13 * 2) / 25 = -.04;  half of it, of 2 answers
    loss_BT, loss, grad_BT = found(1.0, [[-3.0, -1.0], [-7.0]])
    torch.testing.assert_close(loss_BT, torch.tensor([[4.8, 0.4], [7.0, 0.0]]).double())
    assert loss == pytest.approx((2.6 + 7.0) / 2)
    torch.testing.assert_close(grad_BT, torch.tensor([[-0.44, 0.02], [-0.5, 0.0]]).double())


@pytest.mark.derived("supervised_loss/ift")
def test_without_propagation_it_is_the_likelihood() -> None:
    loss_BT, _, grad_BT = found(0.0, [[-3.0, -1.0], [-7.0]])
    assert loss_BT.tolist() == [[3.0, 1.0], [7.0, 0.0]] and grad_BT.tolist() == [[-0.25, -0.25], [-0.5, 0.0]]
