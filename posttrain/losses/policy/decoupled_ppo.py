from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import unknown
from posttrain.core.registry import policy_loss
from posttrain.losses.policy.ppo import ppo

LEVELS = ("token", "sequence")


@policy_loss(
    title="Decoupled PPO",
    paper="arXiv:2110.00641",
    base="ppo",
    laws=("zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT", "ref_logp_BT"),
)
def decoupled_ppo(batch: Batch, low: float = 0.2, high: float | None = None) -> Tensor:
    """Decoupled PPO: clip against where the step began, correct for who sampled: stale answers are not clipped for their age.

    L = -w min(r A, clip(r, 1 - low, 1 + high) A);  r = pi / prox;  w = prox / old;  old is the sampler
    ref_logp is the proximal policy: the weights as the step begins, which the reference `reset(every=1)` holds.
    """
    return sampler_ratio(batch) * near(batch, low, high)


def near(batch: Batch, low: float, high: float | None) -> Tensor:
    """PPO whose ratio is to the proximal policy."""
    loss_BT: Tensor = ppo(batch.but(old_logp_BT=batch["ref_logp_BT"]), low=low, high=high)
    return loss_BT


def sampler_ratio(batch: Batch, level: str = "token") -> Tensor:
    """w = prox / old: the probability of a token, or of its whole answer, under the trainer over that under the sampler."""
    log_BT = torch.where(batch.mask_BT > 0, batch["ref_logp_BT"] - batch["old_logp_BT"], 0.0)
    if level not in LEVELS:
        raise unknown("level of importance weights", level, LEVELS)
    return torch.exp(log_BT if level == "token" else log_BT.sum(-1, keepdim=True).expand_as(log_BT))
