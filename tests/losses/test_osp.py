"""SPCE (OSP) by hand: soft labels, and DPO where they are certain."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.losses.preference.dpo import dpo
from posttrain.systems.preference.osp import ranked_pairs, spce

NAN = float("nan")


def pair(u: float, p: float) -> tuple[Batch, torch.Tensor]:
    """One pair whose margin is u: the chosen answer of one token has log-ratio u, the other 0."""
    logp = torch.tensor([[u], [0.0]], requires_grad=True)
    batch = Batch(
        logp_BT=logp, mask_BT=torch.ones(2, 1), ref_logp_BT=torch.zeros(2, 1), chosen_P=torch.tensor([0]),
        rejected_P=torch.tensor([1]), preferred_P=torch.tensor([p]),
    )  # fmt: skip
    return batch, logp


@pytest.mark.derived("preference_loss/spce")
@pytest.mark.parametrize(
    ("u", "p", "loss", "slope"),
    [
        # beta 0.5, u 2: sigmoid(1) = 0.731059; -log of it 0.313262, of its complement 1.313262
        # p 0.75: 0.75 * 0.313262 + 0.25 * 1.313262 = 0.563262;  0.5 (0.731059 - 0.75) = -0.009471: still up
        (2.0, 0.75, 0.563262, -0.009471),
        # p 0.6: 0.6 * 0.313262 + 0.4 * 1.313262 = 0.713262;  0.5 (0.731059 - 0.6) = 0.065529: the margin is too large, so down
        (2.0, 0.6, 0.713262, 0.065529),
        # p 1 is DPO: 0.313262;  0.5 (0.731059 - 1) = -0.134471
        (2.0, 1.0, 0.313262, -0.134471),
        # a tie at u 0 rests: log 2, no pull
        (0.0, 0.5, 0.693147, 0.0),
        # u -2: sigmoid(-1) = 0.268941; 0.75 * 1.313262 + 0.25 * 0.313262 = 1.063262;  0.5 (0.268941 - 0.75) = -0.240529
        (-2.0, 0.75, 1.063262, -0.240529),
    ],
)
def test_value_and_gradient(u: float, p: float, loss: float, slope: float) -> None:
    batch, logp = pair(u, p)
    found = spce(batch, beta=0.5)
    found.sum().backward()
    assert found.item() == pytest.approx(loss, abs=1e-5)
    assert logp.grad is not None
    assert logp.grad.flatten().tolist() == pytest.approx([slope, -slope], abs=1e-5)


def test_certain_labels_are_dpo_and_the_optimum_is_the_log_odds() -> None:
    batch, _ = pair(1.3, 1.0)
    assert spce(batch, beta=0.1).item() == pytest.approx(dpo(batch, beta=0.1).item())
    # dL/du = 0 at beta u = log(p / (1 - p))
    batch, logp = pair(math.log(0.8 / 0.2) / 0.1, 0.8)
    spce(batch, beta=0.1).sum().backward()
    assert logp.grad is not None and abs(float(logp.grad[0])) < 1e-6


def test_pairs_between_ranks() -> None:
    # win rates of 0, 1, 2, 3: (.9 + .8 + .7)/3 = .8, (.1 + .6 + .7)/3 = .467, (.2 + .4 + .4)/3 = .333, (.3 + .3 + .6)/3 = .4: order 0, 1, 3, 2
    won = {(0, 1): 0.9, (0, 2): 0.8, (0, 3): 0.7, (1, 2): 0.6, (1, 3): 0.7, (2, 3): 0.4}
    assert ranked_pairs(4, won) == [(0, 2, 0.8), (1, 3, 0.7)]
    assert ranked_pairs(4, won, "neighbours") == [(0, 1, 0.9), (1, 3, 0.7), (3, 2, pytest.approx(0.6))]
    assert len(ranked_pairs(4, won, "all")) == 6
    # ranked above, but beaten where the two met: the winner of the match is chosen
    turned = {(0, 1): 0.4, (0, 2): 1.0, (1, 2): 0.6}
    assert ranked_pairs(3, turned, "neighbours")[0] == (1, 0, pytest.approx(0.6))
    assert ranked_pairs(2, {(0, 1): NAN}) == []
