from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import on_last
from posttrain.core.registry import shaping
from posttrain.rewards.shaping.autothink import worth


@shaping(title="AutoThink, stage 1: balance", paper="arXiv:2505.10832", base="autothink", system="autothink")
def autothink_balance(
    batch: Batch, target: float = 0.5, strength: float = 2.0, outcome: str = "reward", mode: str = "", direct: int = 1,
) -> Tensor:  # fmt: skip
    """AutoThink's balance: the mode that too many answers of the batch chose earns less, so that neither dies out.

    d = min(1, strength |z - target|), z the share of the batch's answers that thought;  in the mode above its share
    R = (1 - d) R + d f;  f = 0 when right and -1 when wrong after thinking, 1 and -2 without
    The mode below its share keeps AutoThink's rewards. As the authors' code has it.
    """
    worth_B, right_B, thinks_B = worth(batch, outcome, mode, direct)
    valid_B = batch.valid_B
    over = (thinks_B & valid_B).sum() / valid_B.sum().clamp_min(1) - target
    d = (strength * over.abs()).clamp(max=1.0).to(worth_B)
    floor_B = torch.where(thinks_B, torch.where(right_B, 0.0, -1.0), torch.where(right_B, 1.0, -2.0)).to(worth_B)
    return on_last(torch.where(thinks_B == (over > 0), (1 - d) * worth_B + d * floor_B, worth_B), batch)
