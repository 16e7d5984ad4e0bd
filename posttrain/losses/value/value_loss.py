from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import term


@term(paper="arXiv:1707.06347", reads=("old_value_BT", "return_BT", "value_BT"))
def value_loss(batch: Batch, coef: float = 1.0, clip: float | None = 0.2) -> Tensor:
    """Value loss: the critic regresses on the return, in steps no larger than clip from what it said when sampling.

    L = coef 1/2 max((v - R)^2, (old_v + clip(v - old_v, -c, c) - R)^2);  clip=None: coef 1/2 (v - R)^2
    """
    value_BT, return_BT = batch["value_BT"], batch["return_BT"]
    error_BT = (value_BT - return_BT) ** 2
    if clip is not None:
        old_BT = batch["old_value_BT"]
        near_BT = old_BT + (value_BT - old_BT).clamp(-clip, clip)
        error_BT = torch.maximum(error_BT, (near_BT - return_BT) ** 2)
    return coef * 0.5 * error_BT
