"""Several reward models as one: combine the scores of K members so that what only some of them like is worth little.

Under Bradley-Terry a reward model's scale and origin are its own, so members are standardised before they are combined.
Variance and standard deviation are over the members, never over the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from posttrain.core.errors import UserError, unknown

_TINY = 1e-6  # a member that gives everything the same score becomes 0, not infinite


def statistics(scores_KB: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each member over a reference set, both (K, 1)."""
    return scores_KB.mean(-1, keepdim=True), scores_KB.std(-1, keepdim=True, correction=0)


def standardise(scores_KB: Tensor, stats: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Each member in its own units: z_k = (r_k - mean_k) / std_k.

    Without stats of a reference set the batch's own are used; a batch of one answer then scores 0.
    """
    mean_K1, std_K1 = statistics(scores_KB) if stats is None else stats
    return (scores_KB - mean_K1) / std_K1.clamp_min(_TINY)


def mean(scores_KB: Tensor) -> Tensor:
    """The members' mean: R = 1/K sum_k r_k."""
    return scores_KB.mean(0)


def median(scores_KB: Tensor) -> Tensor:
    """The member in the middle: R = median_k r_k; of an even number, the mean of the two in the middle."""
    sorted_KB = scores_KB.sort(0).values
    K = scores_KB.shape[0]
    return (sorted_KB[(K - 1) // 2] + sorted_KB[K // 2]) / 2


def worst_case(scores_KB: Tensor) -> Tensor:
    """Worst-case optimisation (arXiv:2310.02743): R = min_k r_k."""
    return scores_KB.min(0).values


def uncertainty_weighted(scores_KB: Tensor, coef: float = 0.5) -> Tensor:
    """Uncertainty-weighted optimisation (arXiv:2310.02743): R = mean_k r_k - coef * 1/K sum_k (r_k - mean)^2.

    The paper takes coef 0.5 for best-of-n and about 0.1 for PPO.
    """
    return scores_KB.mean(0) - coef * scores_KB.var(0, correction=0)


def mean_minus_std(scores_KB: Tensor, coef: float = 1.0) -> Tensor:
    """Mean minus standard deviation (arXiv:2312.09244): R = mean_k r_k - coef * std_k r_k."""
    return scores_KB.mean(0) - coef * scores_KB.std(0, correction=0)


COMBINE: dict[str, Callable[..., Tensor]] = {
    f.__name__: f for f in (mean, median, worst_case, uncertainty_weighted, mean_minus_std)
}


def combine(
    scores_KB: Tensor, how: str = "uncertainty_weighted", stats: tuple[Tensor, Tensor] | None = None, **params: Any
) -> Tensor:
    """The reward of each of B answers from the scores of K members, standardised first: (K, B) -> (B,)."""
    if scores_KB.dim() != 2 or scores_KB.shape[0] < 1:
        raise UserError(f"an ensemble combines scores of shape (members, answers), got {tuple(scores_KB.shape)}")
    if how not in COMBINE:
        raise unknown("way to combine reward models", how, COMBINE)
    return COMBINE[how](standardise(scores_KB, stats), **params)
