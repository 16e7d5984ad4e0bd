"""GSPO: GRPO whose ratio is that of the whole answer; several updates per step, without which nothing is ever clipped.

Departures: none known in the loss; clip 3e-4 and 4e-4, four minibatches and no KL are the paper's. 8 answers per
prompt are this package's. With `--minibatches 1` nothing is ever clipped and this is GRPO without a KL.
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
    name="gspo",
    paper="arXiv:2507.18071",
    base="ppo",
    laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT"),
)
def sequence_clip(batch: Batch, low: float = 3e-4, high: float = 4e-4) -> Tensor:
    """GSPO: an answer is rewarded as a whole, so it is one ratio of the whole answer that is clipped.

    s = exp(1/|y| sum_t (logp_t - old_logp_t));  L_t = -min(s A, clip(s, 1 - low, 1 + high) A);  dL_t/dlogp_t = -s A
    """
    log_ratio_BT = torch.where(batch.mask_BT > 0, batch.logp_BT - batch["old_logp_BT"], 0.0)
    log_s_B1 = log_ratio_BT.sum(-1, keepdim=True) / batch.lengths_B.clamp_min(1).unsqueeze(-1)
    # The paper's GSPO-token form: the value is s at every token, the gradient flows through the token's own logp. For
    # one credit per answer it is the gradient of s itself, and it allows credit that differs between tokens.
    log_s_BT = log_s_B1.detach() + batch.logp_BT - batch.logp_BT.detach()
    return ppo(batch.but(logp_BT=log_s_BT, old_logp_BT=torch.zeros_like(log_s_BT)), low=low, high=high)


gspo = method(
    grpo.but(
        name="gspo", title="GSPO", paper="arXiv:2507.18071", doc=__doc__,
        loss=sequence_clip, terms=(), minibatches=4,
    )
)  # fmt: skip
