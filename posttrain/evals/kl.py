"""KL divergence of a policy from its reference, in nats per answer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.core.protocols import Policy
from posttrain.core.registry import evaluation
from posttrain.core.types import Rollout


@evaluation()
def sequence_kl(logp_BT: Tensor, ref_logp_BT: Tensor, mask_BT: Tensor) -> tuple[float, float]:
    """Sequence KL: an unbiased estimate of KL(pi || ref) from answers that pi wrote, and its standard error.

    KL = mean_b sum_t (logp - ref_logp);  one answer has no standard error (nan)
    """
    gap_B = torch.where(mask_BT > 0, logp_BT - ref_logp_BT, 0.0).sum(-1).double()
    return float(gap_B.mean()), float(gap_B.std() / max(gap_B.numel(), 1) ** 0.5)


@torch.no_grad()
def kl_of(policy: Policy, reference: Policy, rollouts: Sequence[Rollout], chunk: int = 256) -> tuple[float, float]:
    """The sequence KL of two policies from rollouts of the first; both are asked anew, at the policy's temperature."""
    logp: list[Tensor] = []
    ref: list[Tensor] = []
    for i in range(0, len(rollouts), chunk):
        some = rollouts[i : i + chunk]
        mask_BT = torch.nn.utils.rnn.pad_sequence([r.mask_T for r in some], batch_first=True)
        for out, who in ((logp, policy), (ref, reference)):
            out.append((who.forward(some)["logp_BT"].cpu() * mask_BT).sum(-1))
    logp_B1, ref_B1 = torch.cat(logp).unsqueeze(-1), torch.cat(ref).unsqueeze(-1)
    return sequence_kl(logp_B1, ref_B1, torch.ones_like(logp_B1))
