"""DPPO: GRPO whose trust region is a divergence, not a ratio; several updates per step.

Departures: only the paper's binary divergences are here, not its top-K ones. The limit 0.15 (tv) is to be tuned; 8
answers per prompt and 4 updates per batch are this package's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import unknown
from posttrain.core.method import method
from posttrain.core.registry import policy_loss
from posttrain.methods.grpo import grpo

KINDS = ("tv", "kl")


@policy_loss(
    name="dppo",
    title="DPPO",
    paper="arXiv:2602.04879",
    base="ppo",
    laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT"),
)
def divergence_mask(batch: Batch, limit: float = 0.15, kind: str = "tv") -> Tensor:
    """DPPO: a token is left alone once the *distribution* has moved far enough its way, not its ratio: rare ones may grow.

    L = -M r A;  M = 0 where D > limit and r has already moved with the credit (r > 1, A > 0 or r < 1, A < 0), else 1
    D from the token alone (the paper's binary forms), p now and q at sampling: tv: |p - q|;
    kl: q log(q/p) + (1 - q) log((1 - q)/(1 - p)), for which a limit near 0.05 suits. The limit is to be tuned.
    """
    adv_BT, old_BT = batch["adv_BT"], batch["old_logp_BT"]
    ratio_BT = torch.exp(batch.logp_BT - old_BT)
    along_BT = torch.where(adv_BT > 0, ratio_BT > 1, ratio_BT < 1)
    keep_BT = ~(along_BT & (moved(batch.logp_BT.detach(), old_BT, kind) > limit))
    return torch.where(keep_BT, -ratio_BT * adv_BT, 0.0)


def moved(logp_BT: Tensor, old_BT: Tensor, kind: str) -> Tensor:
    """How far the two distributions are apart as far as this token says: it, or anything else."""
    p_BT, q_BT = logp_BT.exp(), old_BT.exp()
    if kind == "tv":
        return (p_BT - q_BT).abs()
    if kind == "kl":
        rest_BT = torch.log1p(-q_BT.clamp(max=1 - 1e-6)) - torch.log1p(-p_BT.clamp(max=1 - 1e-6))
        return q_BT * (old_BT - logp_BT) + (1 - q_BT) * rest_BT
    raise unknown("divergence", kind, KINDS)


dppo = method(
    grpo.but(
        name="dppo", title="DPPO", paper="arXiv:2602.04879", doc=__doc__,
        loss=divergence_mask, terms=(), minibatches=4,
    )
)  # fmt: skip
