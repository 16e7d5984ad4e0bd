"""The robust mix and the Gaussian heads by hand."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.systems.reward_shaping_safety.reward_robust_rlhf import (
    GaussianHeads,
    brme_loss,
    fit_heads,
    most_confident,
    robust_mix,
)
from tests.losses.table import slopes

NAN = math.nan


def batch(members: bool = True) -> Batch:
    """Nominal rewards 2 and 1; members say (2, 0, 5) and (1, 3, 4); one answer failed."""
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    reward = torch.tensor([[0.0, 2.0], [1.0, 0.0], [NAN, NAN]], dtype=torch.float64)
    rows = {"m0": [2.0, 1.0, NAN], "m1": [0.0, 3.0, NAN], "m2": [5.0, 4.0, NAN]} if members else {}
    info = {f"reward:{k}_B": torch.tensor(v, dtype=torch.float64) for k, v in rows.items()}
    return Batch(logp_BT=torch.zeros_like(mask), mask_BT=mask, reward_BT=reward, **info)


@pytest.mark.derived("shaping/robust-mix")
@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (1.0, [[0.0, 2.0], [1.0, 0.0]]),  # trust
        (0.0, [[0.0, 0.0], [1.0, 0.0]]),  # minima over heads: 0 and 1; over the batch it would be 1, 0, 4 by head
        (0.6, [[0.0, 1.2], [1.0, 0.0]]),  # .6 * 2 + .4 * 0; .6 * 1 + .4 * 1
    ],
)
def test_mix(lam: float, expected) -> None:
    got = robust_mix(batch(), lam=lam)
    torch.testing.assert_close(got[:2], torch.tensor(expected, dtype=torch.float64))
    assert got[2].isnan().all()


def test_members_by_prefix_and_none() -> None:
    assert robust_mix(batch(), lam=0.0, prefix="m2").sum(-1)[:2].tolist() == [5.0, 4.0]
    assert robust_mix(batch(members=False), lam=0.3).sum(-1)[:2].tolist() == pytest.approx([2.0, 1.0])
    with pytest.raises(UserError, match="share"):
        robust_mix(batch(), lam=1.5)


def test_the_nominal_is_the_surest_head() -> None:
    # sigma least in head 1 for the first answer, in head 0 for the second
    mu, sigma = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.9, 0.1], [0.2, 0.5]])
    assert most_confident(mu, sigma).tolist() == [3.0, 2.0]


def test_loss_by_hand() -> None:
    # (1 + 2 * .5 - 3)^2 = 1; by mu: 2 (-1) = -2, by sigma: 2 (-1) .5 = -1
    mu, sigma = (torch.tensor([[x]], dtype=torch.float64, requires_grad=True) for x in (1.0, 2.0))
    loss = brme_loss(mu, sigma, torch.tensor([3.0]), torch.tensor([[0.5]]))
    by_mu, by_sigma = torch.autograd.grad(loss.sum(), (mu, sigma))
    assert (float(loss.detach()), float(by_mu), float(by_sigma)) == pytest.approx((1.0, -2.0, -1.0))
    plain = slopes(lambda rows: (rows[0][0] + rows[0][1] * 0.5 - 3) ** 2, [[1.0, 2.0]])
    assert plain[0] == pytest.approx([-2.0, -1.0])


def test_heads_agree_and_are_sure_only_where_they_have_data() -> None:
    # feature 0 is in the data with score 2, feature 1 never is
    heads = fit_heads(GaussianHeads(2, 4, "test"), torch.tensor([[1.0, 0.0]] * 16), torch.full((16,), 2.0))
    mu_KB, sigma_KB = heads(torch.eye(2))
    assert (mu_KB[:, 0] - 2).abs().max() < 0.2 < mu_KB[:, 1].std()
    assert bool((sigma_KB[:, 0] < sigma_KB[:, 1]).all())
