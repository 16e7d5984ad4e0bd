from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import group_mean, group_std
from posttrain.core.batch import Batch
from posttrain.core.credit import on_last
from posttrain.core.registry import shaping
from posttrain.rewards.shaping.autothink import worth


@shaping(title="AutoThink, stage 3: length", paper="arXiv:2505.10832", base="autothink", system="autothink")
def autothink_length(
    batch: Batch, alpha: float = 0.05, beta: float = 0.05, outcome: str = "reward", mode: str = "", direct: int = 1,
) -> Tensor:  # fmt: skip
    """AutoThink's length reward: among siblings, shorter is better when right and longer when wrong.

    R <- R + exp(-alpha y) - 1 when right, R + 1 - exp(-beta y) when wrong
    y = (n - mean n) / std n over the group's right answers for a right one, over its wrong ones for a wrong one (unbiased std);
    0 where it is alone, or all are as long.
    """
    worth_B, right_B, _ = worth(batch, outcome, mode, direct)
    n_B, group_B, valid_B = batch.lengths_B, batch["group_B"], batch.valid_B
    side_B = 2 * group_B + right_B
    y_B = (n_B - group_mean(n_B, side_B, valid_B)) / (group_std(n_B, side_B, valid_B) + 1e-6)
    bonus_B = torch.where(right_B, torch.exp(-alpha * y_B) - 1, 1 - torch.exp(-beta * y_B))
    return on_last(worth_B + bonus_B, batch)
