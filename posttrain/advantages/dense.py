from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(title="Dense", laws=("groups_are_separate",), reads=("reward_BT",))
def dense(batch: Batch) -> Tensor:
    """Dense: rewards that are credit already, one per token (VinePPO's values, a teacher's judgement of each token).

    A_t = r_t
    """
    return torch.where(batch.mask_BT > 0, batch["reward_BT"], 0.0)
