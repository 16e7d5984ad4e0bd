"""What table tests share: a batch from lists of unequal rows, values with gradients, and slopes in plain floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import Part

Rows = Sequence[Sequence[float]]
GARBAGE = 3.7  # what padding holds: a part that looks there gives another number


def padded(rows: Rows) -> Tensor:
    T = max(map(len, rows))
    return torch.tensor([[*row, *[GARBAGE] * (T - len(row))] for row in rows], dtype=torch.float64)


def batch_of(logp: Rows, pairs: Sequence[tuple[int, int]] = (), **streams: Rows) -> Batch:
    """Rows of unequal length as a fp64 batch; `batch_of([[-1, -2], [-3]], adv=[[1, 1], [2]])`."""
    T = max(map(len, logp))
    mask_BT = torch.tensor([[1.0] * len(row) + [0.0] * (T - len(row)) for row in logp], dtype=torch.float64)
    chosen_P, rejected_P = (torch.tensor([p[i] for p in pairs], dtype=torch.long) for i in (0, 1))
    more = {f"{name}_BT": padded(rows) for name, rows in streams.items()}
    return Batch(logp_BT=padded(logp), mask_BT=mask_BT, chosen_P=chosen_P, rejected_P=rejected_P, **more)


def at_ratio(points: Sequence[tuple[float, float]], old: float = -1.0) -> Batch:
    """One token a row, at the given (ratio, credit): logp = old + log ratio."""
    ratios, credits = zip(*points, strict=True)
    return batch_of([[old + math.log(r)] for r in ratios], old_logp=[[old]] * len(points), adv=[[a] for a in credits])


def value_and_gradient(part: Part, batch: Batch, by: str = "logp_BT", **params: object) -> tuple[Tensor, Tensor]:
    """The part's output, and the derivative of its sum (inside the mask) by a stream."""
    leaf = batch[by].clone().requires_grad_()
    out = part(batch.but(**{by: leaf}), **params)
    inside = torch.where(batch.mask_BT > 0, out, 0.0) if out.dim() == 2 else out
    (grad,) = torch.autograd.grad(inside.sum(), leaf)
    return out.detach(), grad


def inside(x_BT: Tensor, batch: Batch) -> list[list[float]]:
    """Back to lists of unequal rows."""
    return [row[keep > 0].tolist() for row, keep in zip(x_BT, batch.mask_BT, strict=True)]


def slopes(f: Callable[[list[list[float]]], float], rows: Rows, h: float = 1e-6) -> list[list[float]]:
    """The gradient of a plain-float function of ragged rows by central differences: no autograd involved."""
    out = []
    for b, row in enumerate(rows):
        out.append([])
        for t in range(len(row)):
            up, down = ([list(r) for r in rows] for _ in range(2))
            up[b][t] += h
            down[b][t] -= h
            out[b].append((f(up) - f(down)) / (2 * h))
    return out
