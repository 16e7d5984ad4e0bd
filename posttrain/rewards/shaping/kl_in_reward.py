from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import shaping
from posttrain.losses.regularisers.estimators import kl_estimate


@shaping(paper="arXiv:2203.02155", laws=("free_at_the_reference",), reads=("old_logp_BT", "ref_logp_BT", "reward_BT"))
def kl_in_reward(batch: Batch, coef: float = 0.02, kind: str = "k1") -> Tensor:
    """KL in the reward: each token pays for leaving the reference, and credit assignment carries the bill back.

    r_t <- r_t - coef k(old_logp_t, ref_logp_t);  k1 = old_logp - ref_logp;  tokens outside the mask pay nothing
    """
    return batch["reward_BT"] - coef * sampled_kl(batch, kind)


def sampled_kl(batch: Batch, kind: str = "k1") -> Tensor:
    """The KL estimate of each sampled token under the weights that sampled it; 0 outside the mask."""
    kl_BT = kl_estimate(batch["old_logp_BT"], batch["ref_logp_BT"], kind)
    return torch.where(batch.mask_BT > 0, kl_BT, 0.0)
