from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.grpo import grpo
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(title="Clip-Cov", paper="arXiv:2505.22617", base="grpo", laws=("shift_invariant", "scale_invariant"))
def clip_cov(batch: Batch, ratio: float = 2e-4, low: float = 1.0, high: float = 5.0) -> Tensor:
    """Clip-Cov: GRPO's credit without the few tokens whose likelihood and credit rise together most: they eat the entropy.

    cov_t = (old_logp_t - mean)(A_t - mean), means over all tokens of the step;  A_t = 0, hence no gradient, for
    ratio of the tokens (1 at least) among those with low <= cov <= high
    The paper draws them at random within the bounds, from the live policy at each update; here the largest are taken,
    from the sampler's log-probabilities, once a step.
    """
    adv_BT: Tensor = grpo(batch)
    cov_BT = covariance(batch["old_logp_BT"], adv_BT, batch.mask_BT)
    inside_BT = (batch.mask_BT > 0) & (cov_BT >= low) & (cov_BT <= high)
    return torch.where(largest(cov_BT, inside_BT, ratio * float(batch.mask_BT.sum())), 0.0, adv_BT)


def covariance(logp_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Each token's share of the covariance of log-probability and credit over the mask; 0 outside it."""
    keep_BT = mask_BT > 0
    centred = [x - torch.where(keep_BT, x, 0.0).sum() / keep_BT.sum().clamp_min(1) for x in (logp_BT, adv_BT)]
    return torch.where(keep_BT, centred[0] * centred[1], 0.0)


def largest(x_BT: Tensor, among_BT: Tensor, count: float) -> Tensor:
    """Where the `count` largest values (1 at least; more where they tie) among the marked ones are."""
    found = x_BT[among_BT]
    if not found.numel():
        return torch.zeros_like(among_BT)
    return among_BT & (x_BT >= found.topk(min(max(int(count), 1), found.numel())).values[-1])
