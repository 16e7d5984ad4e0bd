"""What losses of ranked lists look at: each place's log-probability and score, and which places are there."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.losses.preference.margin import sequence_logp


def placed(batch: Batch, mean: bool = False) -> tuple[Tensor, Tensor]:
    """(log pi(y) of the answer at each place, or its mean per token; whether the place is there), best first; 0 where it is not."""
    ranked_LK = batch["ranked_LK"]
    there_LK = ranked_LK >= 0
    logp_B = sequence_logp(batch.logp_BT, batch, mean)
    return torch.where(there_LK, logp_B[ranked_LK.clamp_min(0)], 0.0), there_LK


def scores(batch: Batch) -> Tensor:
    """The score of the answer at each place: what it earned in all; 0 where there is none."""
    ranked_LK = batch["ranked_LK"]
    earned_B = torch.where(batch.valid_B, batch.returns_B, 0.0)
    return torch.where(ranked_LK >= 0, earned_B[ranked_LK.clamp_min(0)], 0.0)
