"""Statistics of siblings, as pure functions of (value_B, group_B, valid_B); rows that are not valid (see `Batch.valid_B`) do not count."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch


def group_sum(x_B: Tensor, group_B: Tensor) -> Tensor:
    """Each row's sum over the rows of its group."""
    _, index_B = torch.unique(group_B, return_inverse=True)
    sums = torch.zeros(int(index_B.max()) + 1 if index_B.numel() else 0, dtype=x_B.dtype, device=x_B.device)
    return sums.index_add(0, index_B, x_B)[index_B]


def group_size(group_B: Tensor, valid_B: Tensor) -> Tensor:
    """How many valid rows each row's group has."""
    return group_sum(valid_B.float(), group_B)


def group_mean(x_B: Tensor, group_B: Tensor, valid_B: Tensor) -> Tensor:
    """Each row's mean over the valid rows of its group (0 for a group with none)."""
    total_B = group_sum(torch.where(valid_B, x_B, 0.0), group_B)
    return total_B / group_size(group_B, valid_B).clamp_min(1)


def group_std(x_B: Tensor, group_B: Tensor, valid_B: Tensor, correction: int = 1) -> Tensor:
    """Each row's standard deviation over the valid rows of its group (0 where there are too few)."""
    square_B = torch.where(valid_B, (x_B - group_mean(x_B, group_B, valid_B)) ** 2, 0.0)
    return (group_sum(square_B, group_B) / (group_size(group_B, valid_B) - correction).clamp_min(1)).sqrt()


def broadcast_to_tokens(adv_B: Tensor, batch: Batch) -> Tensor:
    """Outcome to token: every action of an answer gets the credit of the whole answer; rows that are not valid get 0."""
    return torch.where(batch.valid_B, adv_B, 0.0).unsqueeze(-1) * batch.mask_BT
