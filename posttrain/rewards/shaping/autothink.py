from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.registry import shaping

THINK, DIRECT = (1.0, 0.0), (2.0, -1.0)  # what right and wrong earn


@shaping(title="AutoThink", paper="arXiv:2505.10832")
def autothink(batch: Batch, outcome: str = "reward", mode: str = "", direct: int = 1) -> Tensor:
    """AutoThink: answering without a thought is worth more when right and less when wrong.

    R = 1 or 0 after thinking, 2 or -1 without;  without thinking pays where its chance of being right is above
    (1 + p) / 3, p the chance after thinking
    mode: the component that says whether an answer thought (`thinks`); without it, one of more than `direct` tokens did.
    """
    return on_last(worth(batch, outcome, mode, direct)[0], batch)


def worth(batch: Batch, outcome: str, mode: str, direct: int) -> tuple[Tensor, Tensor, Tensor]:
    """What each answer earns, whether it is right, whether it thought."""
    right_B = component(batch, outcome) > 0.5
    thinks_B = component(batch, mode) > 0.5 if mode else batch.lengths_B > direct
    (good, bad), (better, worse) = THINK, DIRECT
    worth_B = torch.where(thinks_B, torch.where(right_B, good, bad), torch.where(right_B, better, worse))
    return worth_B.to(batch.mask_BT), right_B, thinks_B
