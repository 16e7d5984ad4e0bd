"""What preference losses look at: by how much more the policy than the reference prefers the chosen answer."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch


def sequence_logp(logp_BT: Tensor, batch: Batch, mean: bool = False) -> Tensor:
    """log pi(y): the sum of an answer's token log-probabilities, or their mean (0 for a row that is not valid)."""
    sum_B = torch.where(batch.mask_BT > 0, logp_BT, 0.0).sum(-1)
    return sum_B / batch.lengths_B.clamp_min(1) if mean else sum_B


def log_ratio(batch: Batch, mean: bool = False) -> Tensor:
    """l = log pi(y) - log ref(y) of every answer, or the mean over its tokens; times beta it is DPO's implicit reward."""
    return sequence_logp(batch.logp_BT - batch["ref_logp_BT"], batch, mean)


def chosen_nll(batch: Batch) -> Tensor:
    """-log pi of the preferred answers, the mean over each one's tokens: what keeps a loss without a reference near the data."""
    return -sequence_logp(batch.logp_BT, batch, mean=True)[batch["chosen_P"]]


def margin(batch: Batch, mean: bool = False) -> Tensor:
    """u = [log pi(y_w) - log ref(y_w)] - [log pi(y_l) - log ref(y_l)], one value per pair; not scaled by beta.

    With mean, each log-ratio is divided by its answer's length.
    """
    ratio_B = log_ratio(batch, mean)
    return ratio_B[batch["chosen_P"]] - ratio_B[batch["rejected_P"]]
