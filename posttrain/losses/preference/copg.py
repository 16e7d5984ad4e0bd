from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.registry import preference_loss
from posttrain.core.types import Batch
from posttrain.losses.preference.margin import margin


@preference_loss(title="CoPG", paper="arXiv:2406.19185", base="ipo", needs=("ref_logp",))
def copg(batch: Batch, beta: float = 0.1) -> Tensor:
    """CoPG: two answers, each the other's baseline; right for answers from anywhere, with no importance weight.

    L = (R(y) - R(y') - beta u)^2 / (2 beta);  u = log(pi/ref)(y) - log(pi/ref)(y');  R is what each answer earned
    -dL = [R_b(y) - R_b(y')] (d log pi(y) - d log pi(y')) with R_b = R - beta log(pi/ref): the paper's gradient. Which of
    the two is called chosen does not matter. On policy it is RLOO with two answers; with R - R' = 1/2 it is IPO (beta / 2).
    """
    earned_B = torch.where(batch.live_B, batch.returns_B, 0.0)
    gap_P = earned_B[batch.need("chosen_P")] - earned_B[batch.need("rejected_P")]
    return (gap_P - beta * margin(batch)) ** 2 / (2 * beta)
