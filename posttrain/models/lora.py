"""LoRA: the weights are frozen, and a low-rank adapter beside each matrix is trained.

y = W x + (alpha / rank) B A x, with B = 0 at first. The rollout engine adds B A into its own copy of the weights, never into W, so
that sampling costs the same as without adapters; `posttrain export` writes the sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posttrain.core.errors import UserError
from posttrain.models.adapter import merged_weight, new_adapter
from posttrain.models.four_bit import FourBit

if TYPE_CHECKING:
    from posttrain.policies.language import LanguagePolicy

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoRALinear(nn.Linear):
    """A linear layer with frozen weights and a trained adapter."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scale: float

    @staticmethod
    def wrap(linear: nn.Linear, rank: int, alpha: float, *identity: object) -> LoRALinear:
        """The same layer with an adapter; its matrix A is drawn by identity."""
        with torch.device("meta"):
            out = LoRALinear(linear.in_features, linear.out_features, linear.bias is not None)
        out.weight, out.bias = linear.weight, linear.bias
        out.lora_a, out.lora_b = new_adapter(linear.weight, *linear.weight.shape, rank, *identity)
        out.scale = alpha / rank
        return out

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)

    def merged(self) -> Tensor:
        """The matrix with the adapter added."""
        return merged_weight(self.weight, self.lora_a, self.lora_b, self.scale)


def add_lora(policy: LanguagePolicy, rank: int, alpha: float | None = None, seed: int = 0) -> LanguagePolicy:
    """Freeze the policy and add an adapter to every projection; alpha is twice the rank unless given."""
    policy.requires_grad_(False)
    found = 0
    for path, module in list(policy.model.named_modules()):
        for name, child in list(module.named_children()):
            if name in TARGETS and type(child) is nn.Linear:
                setattr(module, name, LoRALinear.wrap(child, rank, alpha or 2 * rank, seed, f"{path}.{name}"))
                found += 1
            elif isinstance(child, FourBit):
                child.adapt(rank, alpha or 2 * rank, seed, f"{path}.{name}")
                found += 1
    if not found:
        raise UserError(f"the model has no layer named {', '.join(TARGETS[:3])}... for --lora; train it whole")
    return policy


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's state with every adapter added to its matrix, under the names that it has without adapters."""
    state = {
        k: v for k, v in model.state_dict().items() if not k.endswith((".lora_a", ".lora_b", ".packed", ".absmax"))
    }
    for path, module in model.named_modules():
        if isinstance(module, (LoRALinear, FourBit)):
            state[f"{path}.weight"] = module.merged()
    return state
