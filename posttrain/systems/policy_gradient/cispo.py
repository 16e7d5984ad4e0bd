"""CISPO: DAPO's batch with the importance weight clipped instead of the gradient, so that no token falls silent.

Departures: the paper names no number for the limit; high = 5 is that of ScaleRL (arXiv:2510.13786). DAPO's batch is
inherited: answers that were cut off are masked, where the paper has DAPO's length penalty, and groups of equals are
dropped and not replaced. 8 answers per prompt and 4 updates per batch are this package's; the paper speaks of 16
updates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import policy_loss
from posttrain.losses.policy.reinforce import reinforce
from posttrain.systems.policy_gradient.dapo import dapo


@policy_loss(
    name="cispo",
    paper="arXiv:2506.13585",
    base="reinforce",
    laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT"),
)
def clipped_weight(batch: Batch, high: float = 5.0) -> Tensor:
    """CISPO: clip the importance weight, never the gradient of a token.

    L = -sg(min(r, 1 + high)) A log pi;  no lower bound, as in the paper, which names no number for high
    """
    weight_BT = torch.exp(batch.logp_BT - batch["old_logp_BT"]).clamp(max=1 + high)
    return weight_BT.detach() * reinforce(batch)


cispo = method(dapo.but(name="cispo", title="CISPO", paper="arXiv:2506.13585", doc=__doc__, loss=clipped_weight))
