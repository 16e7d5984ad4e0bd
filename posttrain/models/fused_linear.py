"""Several linear layers of the same input as one product.

Their matrices are put end to end for as long as the product takes, forward and again backward: nothing but the input is kept.
One product is quicker than three, and its gradient by the input is summed in float32 before it is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def joined(layers: Sequence[nn.Linear], x_NC: Tensor) -> Tensor:
    """What the layers make of x, side by side."""
    if any(type(layer) is not nn.Linear for layer in layers):  # adapters and packed weights have ways of their own
        return torch.cat([layer(x_NC) for layer in layers], -1)
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if biases and len(biases) < len(layers):
        raise ValueError("either all of the layers have a bias or none")
    return _Joined.apply(x_NC, *(layer.weight for layer in layers), *biases)


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, *given: Tensor) -> Tensor:
        weights, biases = ([g for g in given if g.dim() == n] for n in (2, 1))
        ctx.save_for_backward(x_NC, *weights)
        return F.linear(x_NC, torch.cat(weights), torch.cat(biases) if biases else None)

    @staticmethod
    def backward(ctx: Any, dy_NM: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x_NC, *weights = ctx.saved_tensors
        sizes, out = [len(w) for w in weights], list[Tensor | None]()
        learns = ctx.needs_input_grad
        out.append(dy_NM @ torch.cat(weights) if learns[0] else None)
        some = any(learns[1 : 1 + len(weights)])
        out += (dy_NM.T @ x_NC).split(sizes) if some else [None] * len(weights)
        if len(learns) > 1 + len(weights):
            out += dy_NM.sum(0).split(sizes)
        return tuple(out)
