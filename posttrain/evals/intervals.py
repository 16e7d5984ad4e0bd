"""Confidence intervals of differences: the paired percentile bootstrap over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.errors import UserError

RESAMPLES = 2000
LEVEL = 0.95


def resampled_means(values_S: Sequence[float], resamples: int = RESAMPLES) -> Tensor:
    """Means of `resamples` draws with replacement, as many as there are values; the draws depend on nothing else."""
    x_S = torch.tensor(list(values_S), dtype=torch.float64)
    n = x_S.numel()
    index_RS = torch.randint(n, (resamples, n), generator=rng.torch_generator("bootstrap", n, resamples))
    return x_S[index_RS].mean(-1)


def interval(values_S: Sequence[float], level: float = LEVEL, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The central `level` of the resampled means. All values equal: a point."""
    if not values_S:
        raise UserError("no values to resample; run at least one seed")
    tail = (1 - level) / 2
    ends = torch.quantile(resampled_means(values_S, resamples), torch.tensor([tail, 1 - tail], dtype=torch.float64))
    return float(ends[0]), float(ends[1])


def differences(better_S: Sequence[float], worse_S: Sequence[float]) -> list[float]:
    """What the first has over the second, seed by seed: pairing removes what the seed itself contributes."""
    if len(better_S) != len(worse_S):
        raise UserError(
            f"arms of {len(better_S)} and {len(worse_S)} seeds cannot be paired; run both on the same seeds"
        )
    return [b - w for b, w in zip(better_S, worse_S, strict=True)]
