"""The temporal difference of IQ-Learn by hand."""

from __future__ import annotations

import pytest
import torch

from posttrain.systems.supervised_from_reward.scalable_irl_lm import temporal_difference
from tests.losses.table import batch_of

# an answer of 3 tokens and one of 1, with padding behind it
LOGP, LOGZ = [[-1.0, -2.0, -0.5], [-3.0]], [[4.0, 3.0, 2.0], [5.0]]


def grads(**how: object) -> tuple[list[list[float]], torch.Tensor, torch.Tensor]:
    batch = batch_of(LOGP, logz=LOGZ)
    logp, logz = (batch[n].clone().requires_grad_() for n in ("logp_BT", "logz_BT"))
    loss_BT = temporal_difference.but(**how)(batch.but(logp_BT=logp, logz_BT=logz))
    (loss_BT * batch.mask_BT).sum().backward()
    return loss_BT.tolist(), logp.grad, logz.grad


@pytest.mark.derived("term/td")
def test_table() -> None:
    # Q = logp + logz = 3, 1, 1.5 and 2;  V' = 3, 2, 0 and 0;  gamma = .5: delta = 1.5, 0, 1.5 and 2; coef = .1
    # L = .225, 0, .225 and .4;  dL/dlogp = .2 delta = .3, 0, .3 and .4
    # dL/dlogz_t = .2 delta_t - gamma .2 delta_{t-1} = .3, 0 - .15, .3 - 0 and .4
    loss, by_logp, by_logz = grads(coef=0.1, gamma=0.5)
    torch.testing.assert_close(
        torch.tensor(loss).double(), torch.tensor([[0.225, 0.0, 0.225], [0.4, 0.0, 0.0]]).double()
    )
    torch.testing.assert_close(by_logp, torch.tensor([[0.3, 0.0, 0.3], [0.4, 0.0, 0.0]]).double())
    torch.testing.assert_close(by_logz, torch.tensor([[0.3, -0.15, 0.3], [0.4, 0.0, 0.0]]).double())


@pytest.mark.derived("term/td")
def test_no_gradient_flows_into_the_value_that_follows_where_it_is_a_constant() -> None:
    _, by_logp, by_logz = grads(coef=0.1, gamma=0.5, semi=True)
    torch.testing.assert_close(by_logz, by_logp)


def test_without_a_weight_nothing_pulls() -> None:
    loss, by_logp, by_logz = grads(coef=0.0)
    assert not torch.tensor(loss).any() and not by_logp.any() and not by_logz.any()
