"""SAPO: GRPO with a soft gate in the place of the clip; several updates per step, without which the gate is open.

Departures: none known in the loss; temperatures 1 and 1.05 and no KL are the paper's. 8 answers per prompt and 4
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
    name="sapo",
    title="SAPO",
    paper="arXiv:2511.20347",
    base="ppo",
    laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT"),
)
def soft_gate(batch: Batch, tau_right: float = 1.0, tau_wrong: float = 1.05) -> Tensor:
    """SAPO: a soft gate instead of a clip: the pull of a token fades smoothly as its ratio leaves 1, faster for blame.

    L = -A (4 / tau) sigmoid(tau (r - 1));  dL/dlogp = -A r sech^2(tau (r - 1) / 2);  tau = tau_right where A > 0
    """
    adv_BT = batch["adv_BT"]
    ratio_BT = torch.exp(batch.logp_BT - batch["old_logp_BT"])
    tau_BT = torch.where(adv_BT > 0, torch.full_like(adv_BT, tau_right), tau_wrong)
    return -adv_BT * (4 / tau_BT) * torch.sigmoid(tau_BT * (ratio_BT - 1))


sapo = method(
    grpo.but(
        name="sapo", title="SAPO", paper="arXiv:2511.20347", doc=__doc__,
        loss=soft_gate, terms=(), minibatches=4,
    )
)  # fmt: skip
