from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.registry import shaping
from posttrain.core.types import Batch
from posttrain.rewards.process import component, on_last


@shaping(title="GRPO-S", paper="arXiv:2503.18991")
def difficulty_scaled(batch: Batch, k: float = 2.0, cap: float = 1.0) -> Tensor:
    """Difficulty-scaled reward (DR-IRL's GRPO-S): answers far from the demonstration, with room to learn, count more.

    R = h g r;  h = 2 sigmoid(k (mean similarity - similarity)): hard data;  g = 2 sigmoid(k min(gap - mean gap, cap)):
    responsiveness, gap = r_demonstration - r. Means are over the live rows of the batch; both factors lie in (0, 2)
    around 1. Components `similarity` and `demonstration`; a factor whose component is not there is 1. The paper's own
    squashing is not known to us: these sigmoids are a stand-in.
    """
    r_B, factor_B = batch.returns_B, torch.ones_like(batch.returns_B)
    if "reward:similarity_B" in batch.info:
        factor_B = 2 * torch.sigmoid(-k * off_mean(component(batch, "similarity"), batch.live_B))
    if "reward:demonstration_B" in batch.info:
        gap_B = off_mean(component(batch, "demonstration") - r_B, batch.live_B)
        factor_B = factor_B * 2 * torch.sigmoid(k * gap_B.clamp(max=cap))
    return on_last(factor_B * r_B, batch)


def off_mean(x_B: Tensor, live_B: Tensor) -> Tensor:
    """x less its mean over the live rows."""
    return x_B - torch.where(live_B, x_B, 0.0).sum() / live_B.sum().clamp_min(1)
