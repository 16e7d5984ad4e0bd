"""Pass@k training: GRPO's loop with credit for the best of k answers, so that different ways to be right survive.

Departures: none known in the credit, but for eps = 1e-4 beside the std; all subsets are counted, as in the paper's
analytical form, not drawn. The paper samples more answers per prompt than the 8 here (`--num-generations 32`), and k
= 4 of 8 leaves few subsets. The clip, the token mean, no KL and 4 updates per batch are this package's.
"""

from __future__ import annotations

from math import comb

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.registry import advantage
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo


@advantage(
    name="pass_at_k_training",
    title="Pass@k training",
    paper="arXiv:2508.10751",
    base="grpo",
    laws=("shift_invariant", "scale_invariant", "sums_to_zero", "groups_are_separate"),
    reads=("group_B", "reward_BT"),
)
def best_of_k(batch: Batch, k: int = 4, eps: float = 1e-4) -> Tensor:
    """Pass@k training: credit is what an answer adds to the best of k, so that rare successes need not be repeated.

    A_i = (E[max_S R | i in S] - E[max_S R]) / (std[max_S R] + eps), S any k of the group's answers, all counted exactly
    For rewards of 0 and 1 these are the paper's closed forms (its section 2.4); k = 1 is GRPO with the plain std.
    With k answers or fewer in a group there is one S, and the credit is 0.
    """
    if k < 1:
        raise UserError(f"pass_at_k_training got k={k}; the best of k needs at least 1")
    group_B, credit_B = batch["group_B"], torch.zeros_like(batch.returns_B)
    for group in group_B.unique():
        index = (batch.valid_B & (group_B == group)).nonzero().flatten()
        if index.numel() > k:
            credit_B[index] = best_of_subsets(batch.returns_B[index], k, eps)
    return broadcast_to_tokens(credit_B, batch)


def best_of_subsets(earned_N: Tensor, k: int, eps: float) -> Tensor:
    """By rank: the m-th smallest (from 0) is the best of comb(m, k-1) subsets, and above j of comb(m-1, k-2) with j."""
    sorted_N, order_N = earned_N.sort()
    sorted_N, N = sorted_N - sorted_N[0], len(sorted_N)  # from 0 up, so that equals give exactly 0

    def share(counts: list[int], of: int) -> Tensor:
        return torch.tensor([c / of for c in counts], dtype=sorted_N.dtype, device=sorted_N.device)

    best_N = share([comb(m, k - 1) for m in range(N)], comb(N, k))
    own_N = share([comb(j, k - 1) for j in range(N)], comb(N - 1, k - 1))
    above_N = share([comb(m - 1, k - 2) if m and k > 1 else 0 for m in range(N)], comb(N - 1, k - 1)) * sorted_N
    mean = (best_N * sorted_N).sum()
    std = (best_N * (sorted_N - mean) ** 2).sum().sqrt()
    later_N = above_N.flip(0).cumsum(0).flip(0) - above_N
    return torch.empty_like(earned_N).scatter(0, order_N, (own_N * sorted_N + later_N - mean) / (std + eps))


pass_at_k_training = method(
    grpo.but(
        name="pass-at-k-training", title="Pass@k training", paper="arXiv:2508.10751", doc=__doc__,
        advantage=best_of_k, aggregate=token_mean, terms=(), minibatches=4,
    )
)  # fmt: skip
