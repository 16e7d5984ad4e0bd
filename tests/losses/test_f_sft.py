"""SFT by other divergences: phi from the conjugate, found by search, and the loss by hand."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.losses.aggregate import Totals, sequence_sum
from posttrain.losses.objective import objective
from posttrain.losses.supervised.sft import sft
from posttrain.systems.supervised_from_reward.implicit_reward_bridge import concave, f_sft
from tests.losses.table import batch_of

F = {"pearson": lambda u: (u - 1) ** 2, "hellinger": lambda u: (math.sqrt(u) - 1) ** 2}


@pytest.mark.parametrize("divergence", F)
@pytest.mark.parametrize("x", [-0.4, 0.0, 0.5, 1.5])
def test_phi_is_minus_the_conjugate_of_minus_x(divergence: str, x: float) -> None:
    """f*(t) = max_u t u - f(u) over u > 0, by search; phi(x) = -f*(-x)."""
    best = max(-x * u - F[divergence](u) for u in (k / 1000 for k in range(1, 20_000)))
    assert float(concave(torch.tensor(x).double(), divergence)) == pytest.approx(-best, abs=1e-3)


def found(
    divergence: str, rows: list[list[float]], ref: list[list[float]], beta: float = 0.5
) -> tuple[float, torch.Tensor]:
    batch = batch_of(rows, ref_logp=ref)
    logp = batch.logp_BT.clone().requires_grad_()
    live, part = batch.but(logp_BT=logp), f_sft.but(divergence=divergence, beta=beta)
    loss, _ = objective(live, Totals.of(live), part, sequence_sum)
    loss.backward()
    return float(loss.detach()), logp.grad


REF = [[-2.0, -3.0]]


@pytest.mark.derived("supervised_loss/f-sft")
@pytest.mark.parametrize(
    ("divergence", "logp", "loss", "slope"),
    [
        # beta = .5, x = .5 (sum of log-ratios);  L = -phi / .5;  dL/dlogp = -phi'(x)
        ("pearson", [-1.0, -2.0], -(1 - 0.25) / 0.5, -(1 - 0.5)),  # ratio 2, x = 1: phi = .75, phi' = 1 - x / 2
        ("pearson", [-0.5, 1.5], -(3 - 9 / 4) / 0.5, 0.5),  # ratio 6, x = 3: past 2 it turns back
        ("pearson", [-3.0, -3.0], -(-0.5 - 1 / 16) / 0.5, -1.25),  # ratio -1, x = -.5
        ("hellinger", [-1.0, -2.0], -0.5 / 0.5, -0.25),  # x = 1: 1/2, phi' = 1 / (1 + x)^2
        (
            "hellinger",
            [-3.0, -5.0],
            -(-1 + 4 * (-1.5 + 0.5)) / 0.5,
            -4.0,
        ),  # ratio -3, x = -1.5: the line through (-.5, -1) of slope 4
        ("tv", [-1.0, -2.0], -2.0, -1.0),  # the log-ratio itself
    ],
)
def test_table(divergence: str, logp: list[float], loss: float, slope: float) -> None:
    value, grad_BT = found(divergence, [logp], REF)
    assert value == pytest.approx(loss)
    torch.testing.assert_close(grad_BT, torch.full((1, 2), slope).double())


def test_total_variation_is_sft() -> None:
    rows, ref = [[-1.0, -2.0, -0.5], [-4.0]], [[-2.0, -1.0, -3.0], [-0.1]]
    batch = batch_of(rows)
    logp = batch.logp_BT.clone().requires_grad_()
    objective(batch.but(logp_BT=logp), Totals.of(batch), sft, sequence_sum)[0].backward()
    torch.testing.assert_close(found("tv", rows, ref)[1], logp.grad)


def test_at_the_base_every_divergence_pulls_as_sft_does() -> None:
    for name in ("tv", "pearson", "hellinger"):
        assert found(name, REF, REF)[1].tolist() == [[-1.0, -1.0]]


def test_another_divergence_is_refused() -> None:
    with pytest.raises(UserError, match="no divergence named 'chi'"):
        concave(torch.zeros(1), "chi")
