"""LoRA: the weights are frozen, and a low-rank adapter beside each matrix is trained.

y = W x + (alpha / rank) B A x, with B = 0 at first. The rollout engine adds B A into its own copy of the weights, never into W, so
that sampling costs the same as without adapters; `posttrain export` writes the sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posttrain.core.errors import UserError, unknown
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


def add_lora(
    policy: LanguagePolicy, rank: int, alpha: float | None = None, seed: int = 0, targets: str = ""
) -> LanguagePolicy:
    """Freeze the policy and add adapters; alpha is twice the rank unless given.

    targets: names of layers ("q_proj,v_proj"), "all-linear" (every linear layer but the head), or "" for all projections.
    """
    policy.requires_grad_(False)
    wanted = target_names(policy.model, targets)
    sizes = [
        min(m.weight.shape)
        for path, m in policy.model.named_modules()
        if type(m) is nn.Linear and path.split(".")[-1] in wanted
    ]
    if rank > max(sizes, default=rank):
        raise UserError(
            f"--lora {rank} is more than the rank of the layers themselves, which is at most {max(sizes)}; use a low rank, such as 16"
        )
    found = 0
    for path, module in list(policy.model.named_modules()):
        for name, child in list(module.named_children()):
            if name not in wanted or (targets and is_head(policy.model, child)):
                continue
            if adapt(module, name, rank, alpha or 2 * rank, seed, f"{path}.{name}"):
                found += 1
    if not found:
        raise UserError(f"the model has no layer named {', '.join(TARGETS[:3])}... for --lora; train it whole")
    return policy


def adapt(module: nn.Module, name: str, rank: int, alpha: float, *identity: object) -> bool:
    """An adapter beside one linear layer; False where it is none."""
    child = getattr(module, name)
    if type(child) is nn.Linear:
        setattr(module, name, LoRALinear.wrap(child, rank, alpha, *identity))
    elif isinstance(child, FourBit):
        child.adapt(rank, alpha, *identity)
    else:
        return False
    return True


def linear_names(model: nn.Module) -> set[str]:
    """The last names of all linear layers but the head: what --lora-targets may name."""
    layers = {p: m for p, m in model.named_modules() if isinstance(m, nn.Linear | FourBit)}
    return {path.rpartition(".")[2] for path, m in layers.items() if not is_head(model, m)}


def is_head(model: nn.Module, layer: nn.Module) -> bool:
    """Whether a layer gives the logits."""
    inner = getattr(model, "inner", None)
    return layer is (inner.get_output_embeddings() if inner is not None else getattr(model, "lm_head", None))


def target_names(model: nn.Module, targets: str) -> set[str]:
    """The layers that get adapters, by their last names; an unknown one is an error with the nearest."""
    if not targets:
        return set(TARGETS)
    known = linear_names(model)
    if targets.strip() == "all-linear":
        return known
    names = [name.strip() for name in targets.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UserError(f"--lora-targets {targets}: {unknown('linear layer', name, [*known, 'all-linear'])}")
    if not names:
        raise UserError(f"--lora-targets is {targets!r}; name layers (q_proj,v_proj), or all-linear")
    return set(names)


def adapters_of(model: nn.Module) -> dict[str, LoRALinear | FourBit]:
    """The layers that have an adapter, by path."""
    found = {p: m for p, m in model.named_modules() if isinstance(m, LoRALinear | FourBit)}
    return {p: m for p, m in found.items() if m.lora_a is not None}


def merge_adapters(model: nn.Module) -> None:
    """Every adapter into its matrix; the layers are plain again, and trainable."""
    for path, layer in adapters_of(model).items():
        if isinstance(layer, FourBit):
            raise UserError("an adapter cannot be merged into 4-bit weights; leave --bits away to merge it")
        plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        plain.weight, plain.bias = nn.Parameter(layer.merged()), layer.bias
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, plain)
    model.requires_grad_(True)


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's state with every adapter added to its matrix, under the names that it has without adapters."""
    state = {
        k: v for k, v in model.state_dict().items() if not k.endswith((".lora_a", ".lora_b", ".packed", ".absmax"))
    }
    for path, module in model.named_modules():
        if isinstance(module, (LoRALinear, FourBit)):
            state[f"{path}.weight"] = module.merged()
    return state
