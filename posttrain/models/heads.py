"""Scalar heads: a value for every action (critic), a score for a whole answer (reward model)."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from posttrain.models.layout import Rows, hidden_states


class ScalarHead(nn.Module):
    """One number from a state; starts at zero, so an untrained critic or reward model is indifferent."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.out(h.to(self.out.weight.dtype))
        return out.squeeze(-1).float()


class Critic(nn.Module):
    """A value network of its own: a copy of the policy's trunk with a scalar head."""

    def __init__(self, model: nn.Module, width: int) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        self.head = ScalarHead(width)
        for p in self.model.parameters():
            p.requires_grad_(True)

    def forward(self, rows: Rows, layout: str) -> Tensor:
        """Value of the state before each action, so it may depend on nothing that the action decides."""
        value: Tensor = self.head(hidden_states(self.model, rows, layout)[0])
        return value
