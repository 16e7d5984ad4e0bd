"""CISPO: DAPO's batch with the importance weight clipped instead of the gradient, so that no token falls silent.

Departures: the paper (MiniMax-M1) has DAPO's dynamic sampling and length penalty and names no number for the limit; a
weight of at most 5 (high = 4) is that of ScaleRL (arXiv:2510.13786). The paper takes 16 updates per batch
(`--prompts 512 --minibatches 16`), here 4 from 16 prompts, so that an update sees more than one; 16 answers per prompt are
DAPO's. Its early stop of answers that repeat themselves and its head in fp32 are not here.
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
def clipped_weight(batch: Batch, high: float = 4.0) -> Tensor:
    """CISPO: clip the importance weight, never the gradient of a token.

    L = -sg(min(r, 1 + high)) A log pi;  no lower bound, as in the paper, which names no number for high (5 in all: ScaleRL's)
    """
    weight_BT = torch.exp(batch.logp_BT - batch["old_logp_BT"]).clamp(max=1 + high)
    return weight_BT.detach() * reinforce(batch)


cispo = method(dapo.but(name="cispo", title="CISPO", paper="arXiv:2506.13585", doc=__doc__, loss=clipped_weight))
