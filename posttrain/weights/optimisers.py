"""How parameters move. An optimiser part builds a torch optimiser from named parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from posttrain.core.registry import optimiser


@optimiser(paper="arXiv:1711.05101")
def adamw(
    named: Iterable[tuple[str, nn.Parameter]], lr: float = 1e-6, betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.0, eps: float = 1e-8,
) -> torch.optim.Optimizer:  # fmt: skip
    """AdamW: the default; matrices decay, vectors do not."""
    named = list(named)
    groups = [
        {"params": [p for _, p in named if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=betas, eps=eps)


@optimiser()
def sgd(named: Iterable[tuple[str, nn.Parameter]], lr: float = 1e-2, momentum: float = 0.0) -> torch.optim.Optimizer:
    """SGD: no memory of the past unless momentum is given; for controlled experiments."""
    return torch.optim.SGD([p for _, p in named], lr=lr, momentum=momentum)
