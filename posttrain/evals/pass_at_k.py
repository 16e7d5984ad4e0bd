"""pass@k: the chance that at least one of k answers is right, from n >= k answers of which c are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posttrain.core.errors import UserError


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased (arXiv:2107.03374): 1 - C(n - c, k) / C(n, k), the share of k-subsets with a right answer in them.

    The plain 1 - (1 - c/n)^k is biased low. With n - c < k every subset has one: 1.
    """
    if not 1 <= k <= n:
        raise UserError(f"pass@{k} needs at least {k} answers per problem, got {n}")
    if not 0 <= c <= n:
        raise UserError(f"{c} right answers of {n} cannot be")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_pass_at_k(n: int, right: Sequence[int], k: int) -> tuple[float, float]:
    """Over problems: the mean and its standard error sqrt(var / problems)."""
    each = [pass_at_k(n, c, k) for c in right]
    if not each:
        raise UserError("pass@k of no problems at all; ask for at least 1")
    mean = math.fsum(each) / len(each)
    var = math.fsum((x - mean) ** 2 for x in each) / max(len(each) - 1, 1)
    return mean, math.sqrt(var / len(each))


def ladder(n: int) -> list[int]:
    """The k that a table shows: 1, 2, 4, ... and n itself."""
    return sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n} - {0})
