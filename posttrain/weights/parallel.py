"""How a learner's work is divided among processes: one process today, behind the interface for several."""

from __future__ import annotations

import torch
from torch import nn


class Local:
    """One process: nothing is sharded or summed."""

    def wrap(self, module: nn.Module) -> nn.Module:
        return module

    def sum(self, x: float) -> float:
        return x

    def same_count(self, n: int) -> int:
        return n

    def full_state(self, module: nn.Module) -> dict[str, torch.Tensor]:
        return dict(module.state_dict())
