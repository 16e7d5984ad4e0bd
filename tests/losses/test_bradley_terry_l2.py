"""Bradley-Terry with small scores."""

from __future__ import annotations

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.systems.reward_model.rm_ensemble_conservative import bradley_terry_l2


@pytest.mark.derived("reward_model_loss/bradley-terry-l2")
def test_value_and_gradient() -> None:
    # s_w = 1, s_l = -2, coef .1: -log sigmoid(3) = log(1 + e^-3) = .048587;  .1 (1 + 4) / 2 = .25
    # dL/ds_w = -sigmoid(-3) + .1 * 1 = -.047426 + .1 = .052574;  dL/ds_l = .047426 - .2 = -.152574
    score = torch.tensor([1.0, -2.0], requires_grad=True)
    batch = Batch(mask_BT=torch.ones(2, 1), score_B=score, chosen_P=torch.tensor([0]), rejected_P=torch.tensor([1]))
    loss = bradley_terry_l2(batch, coef=0.1)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([0.298587], abs=1e-5)
    assert score.grad is not None and score.grad.tolist() == pytest.approx([0.052574, -0.152574], abs=1e-5)
    # without the price it is Bradley-Terry
    assert bradley_terry_l2(batch, coef=0.0).tolist() == pytest.approx([0.048587], abs=1e-5)
