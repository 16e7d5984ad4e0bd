"""Best of n: better answers without training, and the exact price of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posttrain.core.protocols import Policy, Scorer
from posttrain.core.registry import decoding
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt, Rollout


@decoding(paper="arXiv:2009.01325")
def best_of_n(
    policy: Policy, prompts: list[Prompt], how: Sampling, scorer: Scorer, seed: int = 0, n: int = 8
) -> list[Rollout | None]:  # fmt: skip
    """Best of n: write n answers, give the one that the reward likes best; None where none could be scored.

    y = argmax_i R(y_i);  KL(best of n || policy) <= log n - (n - 1)/n
    """
    groups = [Group(p, made) for p, made in zip(prompts, policy.sample(prompts, n, how, seed), strict=True)]
    scorer.score(groups)
    return [max(g.scored, key=lambda r: r.reward or 0.0) if g.scored else None for g in groups]


def best_of_n_kl(n: int) -> float:
    """KL(best of n || policy) = log n - (n - 1)/n where no two answers are the same; an upper bound where some are."""
    return math.log(n) - (n - 1) / n


def expected_best(proxy: Sequence[float], gold: Sequence[float], n: int) -> float:
    """The expected gold reward of the best of n by proxy, from all of N >= n answers (arXiv:2112.09332).

    E = sum_i C(i - 1, n - 1) / C(N, n) gold_(i),  gold_(i) of the i-th smallest proxy;  equals share their mean
    """
    N = len(proxy)
    order = sorted(range(N), key=lambda i: proxy[i])
    by_proxy: dict[float, list[float]] = {}
    for i in order:
        by_proxy.setdefault(proxy[i], []).append(gold[i])
    shared = [sum(tied) / len(tied) for tied in by_proxy.values() for _ in tied]
    total, weight = 0.0, n / N
    for i in range(N - 1, n - 2, -1):  # C(i - 1, n - 1) = C(i, n - 1) (i - n + 1) / i: no huge integers
        total += weight * shared[i]
        weight *= (i - n + 1) / max(i, 1)
    return total
