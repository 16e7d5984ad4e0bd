"""4-bit weights (NF4, blocks of 64), as in QLoRA: they are frozen, and an adapter beside them is trained.

A matrix is dequantized where it is used and freed at once, forward and backward, so that only its four bits per weight and one
scale per block stay in memory (4.5 bits per weight). bitsandbytes quantizes and dequantizes. The rollout engine adds adapters to
dequantized copies of its own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posttrain.core.errors import UserError
from posttrain.models.adapter import merged_weight, new_adapter

BLOCK = 64  # weights per scale


class FourBit(nn.Module):
    """A linear layer with a 4-bit matrix; `adapt` adds the low-rank adapter that is trained."""

    packed: Tensor
    absmax: Tensor
    lora_a: nn.Parameter | None
    lora_b: nn.Parameter | None

    def __init__(self, linear: nn.Linear, device: str | torch.device) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.dtype, self.scale = linear.weight.dtype, 1.0
        packed, state = _library().quantize_4bit(
            linear.weight.data.to(device), blocksize=BLOCK, quant_type="nf4", compress_statistics=False
        )
        self.register_buffer("packed", packed)
        self.register_buffer("absmax", state.absmax)
        self.bias = linear.bias
        self.register_parameter("lora_a", None)
        self.register_parameter("lora_b", None)

    def adapt(self, rank: int, alpha: float, *identity: object) -> None:
        like = torch.empty(0, device=self.packed.device, dtype=self.dtype)
        self.lora_a, self.lora_b = new_adapter(like, self.out_features, self.in_features, rank, *identity)
        self.scale = alpha / rank

    def dequantized(self) -> Tensor:
        """The matrix in its original type, without the adapter."""
        library = _library()
        state = library.QuantState(
            absmax=self.absmax, shape=torch.Size((self.out_features, self.in_features)), blocksize=BLOCK, quant_type="nf4",
            code=library.get_4bit_type("nf4", device=self.packed.device), dtype=self.dtype,
        )  # fmt: skip
        matrix: Tensor = library.dequantize_4bit(self.packed, state)
        return matrix

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Product.apply(x, self)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            y = y + self.bias
        if self.lora_a is None or self.lora_b is None:
            return y
        return y + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)

    def merged(self) -> Tensor:
        """The matrix with the adapter added."""
        if self.lora_a is None or self.lora_b is None:
            return self.dequantized()
        return merged_weight(self.dequantized(), self.lora_a, self.lora_b, self.scale)


class _Product(torch.autograd.Function):
    """x W^T with W dequantized for the moment; W has no gradient, so nothing else is saved for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: FourBit) -> Tensor:
        ctx.layer = layer
        return F.linear(x, layer.dequantized())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.layer.dequantized(), None


def quantize(model: nn.Module, targets: tuple[str, ...], device: str | torch.device) -> int:
    """Quantize every projection of the model, one after another, so that the whole model is never on the device; returns how many."""
    found = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets and type(child) is nn.Linear:
                setattr(module, name, FourBit(child, device))
                found += 1
    return found


def _library() -> Any:
    try:
        import bitsandbytes.functional as library
    except ImportError:
        raise UserError("--bits 4 needs bitsandbytes: pip install 'posttrain[4bit]'") from None
    return library
