"""KL and entropy terms: tables by hand, and what each KL estimate's gradient is on average, by enumeration."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.losses.regularisers.entropy import entropy
from posttrain.losses.regularisers.estimators import KINDS, kl_estimate
from posttrain.losses.regularisers.kl import kl
from posttrain.systems.supervised_from_reward.superhf import forward_kl
from tests.losses.table import batch_of, inside, slopes, value_and_gradient

L2 = math.log(2)

# (d = logp - ref, value, gradient): k1 = d, 1;  k2 = d^2/2, d;  k3 = exp(-d) - 1 + d, 1 - exp(-d)
TABLES = {
    "k1": [(L2, L2, 1.0), (-L2, -L2, 1.0), (0.0, 0.0, 1.0)],
    "k2": [(L2, L2**2 / 2, L2), (-L2, L2**2 / 2, -L2), (0.0, 0.0, 0.0)],
    "k3": [(L2, L2 - 0.5, 0.5), (-L2, 1 - L2, -1.0), (0.0, 0.0, 0.0)],
}


@pytest.mark.derived("term/kl")
@pytest.mark.parametrize("kind", KINDS)
def test_kl_table(kind: str) -> None:
    table = TABLES[kind]
    batch = batch_of([[-2.0 + d] for d, _, _ in table], ref_logp=[[-2.0]] * 3)
    loss_BT, grad_BT = value_and_gradient(kl, batch, kind=kind, coef=0.5)
    torch.testing.assert_close(loss_BT[:, 0].tolist(), [0.5 * v for _, v, _ in table], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(grad_BT[:, 0].tolist(), [0.5 * g for _, _, g in table], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "formula"),
    [("k1", lambda d: d), ("k2", lambda d: d * d / 2), ("k3", lambda d: math.exp(-d) - 1 + d)],
)
def test_kl_against_plain_floats(kind, formula) -> None:
    logp, ref = [[-0.3, -2.0, -1.1], [-4.0]], [[-0.9, -1.1, -1.0], [-2.2]]

    def losses(rows):
        return [[0.04 * formula(p - r) for p, r in zip(*row, strict=True)] for row in zip(rows, ref, strict=True)]

    batch = batch_of(logp, ref_logp=ref)
    loss_BT, grad_BT = value_and_gradient(kl, batch, kind=kind)
    torch.testing.assert_close(inside(loss_BT, batch), losses(logp), rtol=1e-9, atol=1e-12)
    expected = slopes(lambda rows: sum(map(sum, losses(rows))), logp)
    torch.testing.assert_close(inside(grad_BT, batch), expected, rtol=1e-6, atol=1e-9)


def test_default_is_grpos_k3() -> None:
    batch = batch_of([[-1.0]], ref_logp=[[-1.0 - L2]])
    assert kl(batch).item() == pytest.approx(0.04 * (L2 - 0.5))


def enumerate_gradients(kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For pi = softmax(z) over 4 actions: E_pi[grad k], grad KL(pi || ref), grad KL(ref || pi), exactly."""
    z = torch.tensor([0.5, -1.0, 0.2, 1.3], dtype=torch.float64, requires_grad=True)
    logp, ref = z.log_softmax(-1), torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64).log()
    estimate = (logp.exp().detach() * kl_estimate(logp, ref, kind)).sum()
    reverse, forward = (logp.exp() * (logp - ref)).sum(), (ref.exp() * (ref - logp)).sum()
    grads = [torch.autograd.grad(x, z, retain_graph=True)[0] for x in (estimate, reverse, forward)]
    return grads[0], grads[1], grads[2]


def test_what_each_estimate_pulls_towards() -> None:
    mean, reverse, forward = enumerate_gradients("k1")
    torch.testing.assert_close(mean, torch.zeros_like(mean))  # E[grad log pi] = 0: as a loss k1 is only noise
    mean, reverse, forward = enumerate_gradients("k2")
    torch.testing.assert_close(mean, reverse)
    mean, reverse, forward = enumerate_gradients("k3")
    torch.testing.assert_close(mean, forward)
    assert (forward - reverse).abs().max() > 0.01  # and they are different things


def test_k1_and_k3_are_unbiased_estimates() -> None:
    pi, ref = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    exact = (pi * (pi / ref).log()).sum()
    for kind in ("k1", "k3"):
        torch.testing.assert_close((pi * kl_estimate(pi.log(), ref.log(), kind)).sum(), exact)


@pytest.mark.derived("term/entropy")
def test_entropy() -> None:
    # -coef H and -coef, so that minimising raises the entropy
    batch = batch_of([[0.0, 0.0], [0.0]], entropy=[[1.0, 0.5], [2.0]])
    loss_BT, grad_BT = value_and_gradient(entropy, batch, by="entropy_BT")
    assert inside(loss_BT, batch) == [[-0.01, -0.005], [-0.02]]
    assert inside(grad_BT, batch) == [[-0.01, -0.01], [-0.01]]


def test_errors_say_what_to_give() -> None:
    with pytest.raises(UserError, match="no KL estimate named 'k4'"):
        kl(batch_of([[0.0]], ref_logp=[[0.0]]), kind="k4")
    with pytest.raises(UserError, match="entropy_BT"):
        entropy(batch_of([[0.0]]))


@pytest.mark.derived("term/forward-kl")
def test_forward_kl_by_hand() -> None:
    """ref = (1/2, 1/2), pi = (1/4, 3/4): KL(ref || pi) = 1/2 log 2 + 1/2 log(2/3) = 1/2 log(4/3); by the logit of v: pi(v) - ref(v).

    The head is the identity, so hidden states are logits: (0, log 3) for pi, (0, 0) for ref.
    """
    eye, same = torch.eye(2, dtype=torch.float64), torch.zeros(1, 2, 2, dtype=torch.float64)
    hidden_BTD = torch.tensor([[[0.0, math.log(3)], [0.0, 0.0]]], dtype=torch.float64, requires_grad=True)
    heads = {"head_VD": eye, "ref_head_VD": eye, "temperature_B": torch.ones(1)}
    batch = Batch(mask_BT=torch.ones(1, 2), hidden_BTD=hidden_BTD, ref_hidden_BTD=same, **heads)
    loss_BT = forward_kl(batch, coef=0.35)
    assert loss_BT[0].tolist() == pytest.approx([0.35 * 0.5 * math.log(4 / 3), 0.0])
    (grad_BTD,) = torch.autograd.grad(loss_BT[0, 0], hidden_BTD)
    assert grad_BTD[0, 0].tolist() == pytest.approx([0.35 * (0.25 - 0.5), 0.35 * (0.75 - 0.5)])
    (other,) = forward_kl(batch.but(hidden_BTD=same, ref_hidden_BTD=hidden_BTD.detach()), coef=1.0)[:, 0].tolist()
    assert other == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5)), "the other direction is another number"
