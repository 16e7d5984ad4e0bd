"""Dual-clip PPO: GRPO's credit with a second bound, so that one blamed token of huge ratio cannot rule an update.

Departures: the paper trains agents of a game with a critic of several heads and GAE; here its loss stands on GRPO's
group-relative credit for language, with GRPO's KL of 0.04 and 4 updates per batch. Clip 0.2 and c = 3 are the
paper's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import policy_loss
from posttrain.losses.policy.ppo import ppo
from posttrain.methods.grpo import grpo


@policy_loss(
    name="dual_clip",
    paper="arXiv:1912.09729",
    base="ppo",
    laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT"),
)
def twice_clipped(batch: Batch, low: float = 0.2, high: float | None = None, c: float = 3.0) -> Tensor:
    """Dual-clip PPO: PPO whose loss for blame is bounded too, so that one stale token with a huge ratio cannot rule.

    L = L_ppo for A >= 0;  min(L_ppo, -c A) for A < 0: beyond r = c a blamed token has no gradient
    """
    adv_BT, loss_BT = batch["adv_BT"], ppo(batch, low=low, high=high)
    return torch.where(adv_BT < 0, torch.minimum(loss_BT, -c * adv_BT), loss_BT)


dual_clip = method(
    grpo.but(
        name="dual-clip", title="Dual-clip PPO", paper="arXiv:1912.09729", doc=__doc__,
        loss=twice_clipped, minibatches=4,
    )
)  # fmt: skip
