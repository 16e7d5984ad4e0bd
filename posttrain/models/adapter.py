"""The low-rank difference that learns beside a frozen matrix: y = W x + scale B A x, B = 0 at first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posttrain.core import rng


def new_adapter(like: Tensor, out: int, wide: int, rank: int, *identity: object) -> tuple[nn.Parameter, nn.Parameter]:
    """(A, B) for a matrix of `out` rows and `wide` columns, of like's type and device; A is drawn by identity."""
    a = torch.randn(rank, wide, generator=rng.torch_generator("lora", *identity)) / wide**0.5
    return nn.Parameter(a.to(like)), nn.Parameter(torch.zeros(out, rank).to(like))


def added(matrix: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """The matrix that does the same without an adapter, in its own type."""
    return (matrix.float() + scale * (b.float() @ a.float())).to(matrix.dtype).detach()
