"""A low-rank adapter beside a frozen matrix: y = W x + scale B A x, with B = 0 at first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posttrain.core import rng


def new_adapter(
    like: Tensor, out_features: int, in_features: int, rank: int, *identity: object
) -> tuple[nn.Parameter, nn.Parameter]:
    """(A, B) for a matrix of `out_features` rows and `in_features` columns, with the type and device of `like`; A is drawn by identity."""
    a = torch.randn(rank, in_features, generator=rng.torch_generator("lora", *identity)) / in_features**0.5
    return nn.Parameter(a.to(like)), nn.Parameter(torch.zeros(out_features, rank).to(like))


def merged_weight(matrix: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """The matrix with the adapter added, in its own type."""
    return (matrix.float() + scale * (b.float() @ a.float())).to(matrix.dtype).detach()
