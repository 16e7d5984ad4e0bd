from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.whiten import batch_whiten
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(title="Dense", laws=("groups_are_separate",), reads=("reward_BT",))
def dense(batch: Batch, whiten: bool = False) -> Tensor:
    """Dense: rewards that are credit already, one per token (VinePPO's values, a teacher's judgement of each token).

    A_t = r_t;  whiten: in standard deviations of the batch's tokens, mean 0
    """
    adv_BT = torch.where(batch.mask_BT > 0, batch["reward_BT"], 0.0)
    return batch_whiten(adv_BT, batch.mask_BT) if whiten else adv_BT
