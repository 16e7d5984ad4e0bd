"""Several linear layers of the same input as one matrix product.

Their matrices are concatenated for the duration of the product, forward and again backward: nothing but the input is saved.
One product is faster than three, and its gradient with respect to the input is summed in float32 before it is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def fused_linear(layers: Sequence[nn.Linear], x_NC: Tensor) -> Tensor:
    """The outputs of the layers, concatenated along the last dimension."""
    if any(type(layer) is not nn.Linear for layer in layers):  # adapters and 4-bit weights have their own forward
        return torch.cat([layer(x_NC) for layer in layers], -1)
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if biases and len(biases) < len(layers):
        raise ValueError("either all of the layers have a bias or none")
    y: Tensor = _FusedLinear.apply(x_NC, *(layer.weight for layer in layers), *biases)  # type: ignore[no-untyped-call]
    return y


class _FusedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, *tensors: Tensor) -> Tensor:
        weights, biases = ([t for t in tensors if t.dim() == n] for n in (2, 1))
        ctx.save_for_backward(x_NC, *weights)
        return F.linear(x_NC, torch.cat(weights), torch.cat(biases) if biases else None)

    @staticmethod
    def backward(ctx: Any, dy_NM: Tensor) -> tuple[Tensor | None, ...]:
        x_NC, *weights = ctx.saved_tensors
        sizes, out = [len(w) for w in weights], list[Tensor | None]()
        needs_grad = ctx.needs_input_grad
        out.append(dy_NM @ torch.cat(weights) if needs_grad[0] else None)
        any_weight = any(needs_grad[1 : 1 + len(weights)])
        out += (dy_NM.T @ x_NC).split(sizes) if any_weight else [None] * len(weights)
        if len(needs_grad) > 1 + len(weights):
            out += dy_NM.sum(0).split(sizes)
        return tuple(out)
