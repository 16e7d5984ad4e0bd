"""Scalar heads: a value for every action (critic), a score for a whole answer (reward model)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from posttrain.models.layout import Rows, hidden_states
from posttrain.models.lora import adapters_of


class ScalarHead(nn.Module):
    """One number from a state (or `outputs` of them); starts at zero, so an untrained critic or reward model is indifferent."""

    def __init__(self, width: int, outputs: int = 1) -> None:
        super().__init__()
        self.out = nn.Linear(width, outputs)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.out(h.to(self.out.weight.dtype))
        return (out.squeeze(-1) if self.out.out_features == 1 else out).float()


class Critic(nn.Module):
    """A value network: a trunk of its own with a scalar head, or (model None) a head on the policy's trunk."""

    def __init__(self, model: nn.Module | None, head: ScalarHead) -> None:
        super().__init__()
        self.model, self.head = model, head

    def states(self, rows: Rows, layout: str, of_policy: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """States before each action and after the last; of_policy: those of the policy's trunk, where they are known."""
        if self.model is not None:
            return hidden_states(self.model, rows, layout)
        assert of_policy is not None
        return of_policy

    def values(self, rows: Rows, states: tuple[Tensor, Tensor], needs: set[str]) -> dict[str, Tensor]:
        """value_BT (value_BTK): of the state before each action, so it may depend on nothing that the action decides.
        value_after_BT: of the state that the action leads to."""
        before_BTD, last_BD = states
        real_BT, out = rows.real_BT, dict[str, Tensor]()
        if "value_after_BT" in needs:
            after_BTD = torch.cat((before_BTD[:, 1:], torch.zeros_like(before_BTD[:, :1])), 1)
            end_BT = real_BT & (
                torch.arange(real_BT.shape[1], device=real_BT.device) == real_BT.sum(-1, keepdim=True) - 1
            )
            after_BTD = torch.where(end_BT.unsqueeze(-1), last_BD.unsqueeze(1), after_BTD)
            out["value_after_BT"] = self.head(after_BTD) * real_BT
        if "value_BT" in needs:
            out["value_BT"] = self.head(before_BTD) * real_BT
        if "value_BTK" in needs:
            value_BTK = self.head(before_BTD)
            value_BTK = value_BTK.unsqueeze(-1) if value_BTK.dim() == 2 else value_BTK
            out["value_BTK"] = value_BTK * real_BT.unsqueeze(-1)
        return out


def trunk_beside(model: nn.Module) -> nn.Module:
    """A network like this one that learns by itself: a copy. Where the model has adapters, its frozen weights are used by both
    and only the adapters are copied."""
    memo: dict[int, object] = {}
    if adapters_of(model):
        memo = {id(x): x for x in (*model.parameters(), *model.buffers()) if not x.requires_grad}
        return copy.deepcopy(model, memo)
    return copy.deepcopy(model).requires_grad_(True)
