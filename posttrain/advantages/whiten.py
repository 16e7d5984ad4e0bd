"""Centring and whitening, within a group or over a batch; rows that are not valid (and tokens outside the mask) do not count."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import group_mean, group_std


def group_centre(x_B: Tensor, group_B: Tensor, valid_B: Tensor) -> Tensor:
    """x - mean over its group."""
    return x_B - group_mean(x_B, group_B, valid_B)


def group_whiten(x_B: Tensor, group_B: Tensor, valid_B: Tensor, eps: float) -> Tensor:
    """(x - mean) / (std + eps) over its group, with the unbiased std (divided by G - 1); equals give 0."""
    return group_centre(x_B, group_B, valid_B) / (group_std(x_B, group_B, valid_B) + eps)


def batch_whiten(x_BT: Tensor, mask_BT: Tensor, eps: float = 1e-8) -> Tensor:
    """(x - mean) / sqrt(var + eps) over every token in the mask; 0 outside it, and everywhere if all are equal."""
    keep_BT = mask_BT > 0
    count = keep_BT.sum().clamp_min(1)
    centred_BT = torch.where(keep_BT, x_BT - torch.where(keep_BT, x_BT, 0.0).sum() / count, 0.0)
    return centred_BT * torch.rsqrt((centred_BT**2).sum() / count + eps)
