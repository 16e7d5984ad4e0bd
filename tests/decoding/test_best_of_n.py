"""Best of n: it gives the best, at the price that is written, and the estimate from many answers is exact."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from posttrain.decoding.best_of_n import best_of_n, best_of_n_kl, expected_best
from posttrain.rewards.runtime.score import RewardSum
from tests.runs import tiny_run


def test_gives_the_best_of_its_samples() -> None:
    policy, how = tiny_run.policy(), tiny_run.config().sampling
    prompts = [tiny_run.Count().prompt(i) for i in range(3)]
    scorer = RewardSum([("a", lambda prompt, text: float(sum(map(ord, text))), 1.0)], timeout=60)
    best = best_of_n(policy, prompts, how, scorer, seed=5, n=6)
    for given, made in zip(best, policy.sample(prompts, 6, how, 5), strict=True):
        assert given is not None and sum(map(ord, given.text)) == max(sum(map(ord, r.text)) for r in made)


def test_nothing_scored_gives_nothing() -> None:
    def broken(prompt: object, text: str) -> float:
        raise RuntimeError("no")

    found = best_of_n(
        tiny_run.policy(),
        [tiny_run.Count().prompt(0)],
        tiny_run.config().sampling,
        RewardSum([("x", broken, 1.0)]),
        n=2,
    )
    assert found == [None]


def test_its_kl() -> None:
    """n = 1 is the policy itself; for n = 2 of K equally likely answers with distinct rewards the best one's law is
    (2k - 1)/K^2, whose KL to 1/K goes to log 2 - 1/2 from below."""
    assert best_of_n_kl(1) == 0.0
    K = 2000
    exact = sum((2 * k - 1) / K**2 * math.log((2 * k - 1) / K) for k in range(1, K + 1))
    assert best_of_n_kl(2) == pytest.approx(math.log(2) - 0.5) == pytest.approx(exact, abs=1e-3)
    assert exact <= best_of_n_kl(2)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_expected_best_is_the_mean_over_all_subsets(n: int) -> None:
    proxy, gold = [0.3, 0.1, 0.9, 0.5], [5.0, 1.0, -2.0, 4.0]
    subsets = list(combinations(range(4), n))
    by_hand = sum(gold[max(s, key=lambda i: proxy[i])] for s in subsets) / len(subsets)
    assert expected_best(proxy, gold, n) == pytest.approx(by_hand)


def test_equals_share() -> None:
    """Two answers that the proxy cannot tell apart: either may be given, so 1/2 (2 + 6)."""
    assert expected_best([1.0, 1.0], [2.0, 6.0], 2) == pytest.approx(4.0)
    assert expected_best([1.0, 1.0], [6.0, 2.0], 2) == pytest.approx(4.0)
