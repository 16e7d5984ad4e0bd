"""LD-DPO: DPO in which the part of an answer beyond the length of the other one counts less.

Departures: alpha 0.5 (the paper tunes it between 0 and 1 by model; 1 is DPO). Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.methods.dpo import dpo


@preference_loss(
    name="ld_dpo", paper="arXiv:2409.06411", base="dpo", laws=("swap_flips_gradient_sign", "chosen_up_rejected_down"),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)  # fmt: skip
def ld_dpo_loss(batch: Batch, beta: float = 0.1, alpha: float = 0.5) -> Tensor:
    """LD-DPO: log-likelihood without the reward of being long: tokens past the shorter answer's length weigh alpha.

    L = -log sigmoid(beta (l'_w - l'_l));  l' = sum_{t <= m} d_t + alpha sum_{t > m} d_t,  d = log pi - log ref,  m = min(|y_w|, |y_l|)
    """
    chosen_P, rejected_P = batch["chosen_P"], batch["rejected_P"]
    shared_P = torch.minimum(batch.lengths_B[chosen_P], batch.lengths_B[rejected_P])
    place_BT = batch.mask_BT.cumsum(-1)  # 1 at an answer's first own token
    ratio_BT = torch.where(batch.mask_BT > 0, batch.logp_BT - batch["ref_logp_BT"], 0.0)

    def discounted(rows_P: Tensor) -> Tensor:
        weight_PT = torch.where(place_BT[rows_P] <= shared_P.unsqueeze(-1), 1.0, alpha)
        return (weight_PT * ratio_BT[rows_P]).sum(-1)

    return -logsigmoid(beta * (discounted(chosen_P) - discounted(rejected_P)))


ld_dpo = method(dpo.but(name="ld-dpo", title="LD-DPO", paper="arXiv:2409.06411", doc=__doc__, loss=ld_dpo_loss))
