from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import margin


@preference_loss(title="CoPG", paper="arXiv:2406.19185", base="ipo", reads=("ref_logp_BT",))
def copg(batch: Batch, beta: float = 0.1) -> Tensor:
    """CoPG: two answers, each the other's baseline; right for answers from anywhere, with no importance weight.

    L = (R(y) - R(y') - beta u)^2 / (2 beta);  u = log(pi/ref)(y) - log(pi/ref)(y');  R is what each answer earned
    -dL = [R_b(y) - R_b(y')] (d log pi(y) - d log pi(y')) with R_b = R - beta log(pi/ref): the paper's gradient. Which of
    the two is called chosen does not matter. On policy it is RLOO with two answers; with R - R' = 1/2 it is IPO (beta / 2).
    """
    earned_B = torch.where(batch.valid_B, batch.returns_B, 0.0)
    gap_P = earned_B[batch["chosen_P"]] - earned_B[batch["rejected_P"]]
    return (gap_P - beta * margin(batch)) ** 2 / (2 * beta)
