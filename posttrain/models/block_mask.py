"""The attention mask of packed rows: each attends only within itself."""

from __future__ import annotations

import torch
from torch import Tensor


def block_mask(segments_BT: Tensor) -> Tensor:
    """(B, 1, T, T) bool: causal, and only within the same segment (-1 is padding and attends to itself)."""
    T = segments_BT.shape[1]
    same = segments_BT[:, :, None] == segments_BT[:, None, :]
    causal = torch.ones(T, T, dtype=torch.bool, device=segments_BT.device).tril()
    return (same & causal)[:, None]
