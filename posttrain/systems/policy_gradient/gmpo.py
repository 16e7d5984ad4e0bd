"""GMPO: GRPO on the geometric mean of an answer's ratios, each token clipped by itself; several updates per step.

Departures: none known in the loss; its limits e^-0.4 and e^0.4 and no KL are the paper's. 8 answers per prompt and 4
updates per batch are this package's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import policy_loss
from posttrain.methods.grpo import grpo


@policy_loss(
    name="gmpo",
    title="GMPO",
    paper="arXiv:2507.20673",
    base="gspo",
    laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT"),
)
def geometric_mean(batch: Batch, low: float = 0.4, high: float = 0.4) -> Tensor:
    """GMPO: the geometric mean of an answer's ratios, each clipped by itself first, so that one outlier cannot rule.

    d_t = logp_t - old_logp_t, held below high where A > 0 and above -low where A < 0;  s = exp(mean_t d_t);  L_t = -s A
    The limits are e^-0.4 and e^0.4; a clipped token has no gradient, the others -s A (under `sequence_mean`: the paper's).
    """
    adv_BT = batch["adv_BT"]
    raw_BT = torch.where(batch.mask_BT > 0, batch.logp_BT - batch["old_logp_BT"], 0.0)
    log_BT = torch.where(adv_BT < 0, raw_BT.clamp_min(-low), raw_BT.clamp_max(high))
    log_s_B1 = log_BT.sum(-1, keepdim=True) / batch.lengths_B.clamp_min(1).unsqueeze(-1)
    return -adv_BT * torch.exp(
        log_s_B1.detach() + log_BT - log_BT.detach()
    )  # the value is s, the gradient a token's own


gmpo = method(
    grpo.but(
        name="gmpo", title="GMPO", paper="arXiv:2507.20673", doc=__doc__,
        loss=geometric_mean, terms=(), minibatches=4,
    )
)  # fmt: skip
