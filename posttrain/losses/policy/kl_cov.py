from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import policy_loss


@policy_loss(
    title="KL-Cov", paper="arXiv:2505.22617", base="ppo", laws=("on_policy_is_reinforce", "zero_credit_no_gradient")
)
def kl_cov(batch: Batch, coef: float = 1.0) -> Tensor:
    """KL-Cov: no clip; the tokens that the advantage `kl_cov` marked pay for every step away from the sampler.

    L = -r A + coef mark |logp - old_logp|;  with no marks in the batch nobody pays
    """
    log_ratio_BT = batch.logp_BT - batch["old_logp_BT"]
    mark_BT = batch["mark_BT"] if "mark_BT" in batch else torch.zeros_like(log_ratio_BT)
    return coef * mark_BT * log_ratio_BT.abs() - torch.exp(log_ratio_BT) * batch["adv_BT"]
