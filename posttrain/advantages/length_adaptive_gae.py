from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.gae import surprises
from posttrain.advantages.whiten import batch_whiten
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(title="Length-adaptive GAE (VAPO)", paper="arXiv:2504.05118", base="gae", reads=("old_value_BT",))
def length_adaptive_gae(batch: Batch, alpha: float = 0.05, whiten: bool = True) -> tuple[Tensor, Tensor]:
    """Length-adaptive GAE (VAPO): the longer the answer, the further back the outcome's surprise is carried.

    lam = 1 - 1 / (alpha |y|), at least 0, for the credit;  lam = 1 for the critic's targets (decoupled GAE);  gamma = 1
    """
    value_BT = torch.where(batch.mask_BT > 0, batch["old_value_BT"], 0.0)
    lam_B = (1 - 1 / (alpha * batch.lengths_B.clamp_min(1))).clamp_min(0)
    adv_BT = surprises(batch["reward_BT"], value_BT, batch.mask_BT, 1.0, lam_B)
    return_BT = surprises(batch["reward_BT"], value_BT, batch.mask_BT, 1.0, 1.0) + value_BT
    return (batch_whiten(adv_BT, batch.mask_BT) if whiten else adv_BT), return_BT
