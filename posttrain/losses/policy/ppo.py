from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import policy_loss


@policy_loss(
    paper="arXiv:1707.06347",
    laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT"),
)
def ppo(batch: Batch, low: float = 0.2, high: float | None = None) -> Tensor:
    """PPO clip: follow the importance ratio until it has moved far enough in the direction of the credit.

    r = exp(logp - old_logp);  L = -min(r A, clip(r, 1 - low, 1 + high) A);  high = low unless given
    """
    adv_BT = batch["adv_BT"]
    ratio_BT = torch.exp(batch.logp_BT - batch["old_logp_BT"])
    clipped_BT = ratio_BT.clamp(1 - low, 1 + (low if high is None else high))
    return -torch.minimum(ratio_BT * adv_BT, clipped_BT * adv_BT)
