"""KL, diversity, win rate and over-optimisation by hand."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.evals.diversity import across_input, distinct, diversity, ngrams, per_input
from posttrain.evals.kl import kl_of, sequence_kl
from posttrain.evals.overoptimisation import Point, fit, overoptimisation
from posttrain.evals.win_rate import win_rate
from tests.runs import tiny_run


@pytest.mark.derived("eval/sequence-kl")
def test_sequence_kl() -> None:
    """Gaps 0.5 + 0.25 = 0.75 and 0.25 (its second token is masked): mean 0.5, std 0.5/sqrt 2, error std/sqrt 2 = 0.25."""
    logp_BT = torch.tensor([[-1.0, -1.0], [-1.0, -9.0]])
    ref_logp_BT = torch.tensor([[-1.5, -1.25], [-1.25, -1.0]])
    mask_BT = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    kl, error = sequence_kl(logp_BT, ref_logp_BT, mask_BT)
    assert kl == pytest.approx(0.5) and error == pytest.approx(0.25)


def test_kl_of_two_policies() -> None:
    """Nothing to itself; to another, the same sum as the log-probabilities give, whatever the pieces."""
    policy, other = tiny_run.policy(0), tiny_run.policy(1)
    prompts = [tiny_run.Count().prompt(i) for i in range(3)]
    rollouts = [r for rs in policy.sample(prompts, 3, tiny_run.config().sampling) for r in rs]
    assert kl_of(policy, policy, rollouts) == (0.0, 0.0)
    with torch.no_grad():
        by_hand = [float((policy.forward([r])["logp_BT"] - other.forward([r])["logp_BT"]).sum()) for r in rollouts]
    kl, _ = kl_of(policy, other, rollouts, chunk=4)
    assert kl == pytest.approx(sum(by_hand) / 9, abs=1e-3) and kl > 0.5


def test_the_kl_estimate_is_unbiased() -> None:
    """Two coins, p = 3/4 against q = 1/2: KL = 3/4 log(3/2) + 1/4 log(1/2) exactly when each face comes its share."""
    p, q = torch.tensor([3 / 4] * 3 + [1 / 4]), torch.full((4,), 0.5)
    kl, _ = sequence_kl(p.log().unsqueeze(-1), q.log().unsqueeze(-1), torch.ones(4, 1))
    assert kl == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_ngrams() -> None:
    assert ngrams("abcab", 2) == [("a", "b"), ("b", "c"), ("c", "a"), ("a", "b")]
    assert ngrams("a", 2) == []


@pytest.mark.derived("eval/distinct")
def test_distinct() -> None:
    """a b a: 2 different of 3 words; with V = 2 a uniform writer uses 2 (1 - (1/2)^3) = 7/4 of them: 2 / (7/4) = 8/7."""
    assert distinct(["aba"], 1, vocabulary=2) == pytest.approx(8 / 7)
    # bigrams ab, ba: 2 different of 2; 2 (1 - 1/4) = 3/2: 4/3
    assert distinct(["aba"], 2, vocabulary=2) == pytest.approx(4 / 3)
    assert math.isnan(distinct(["a"], 2))
    assert diversity(["aba"], (1, 2, 9), vocabulary=2) == pytest.approx((8 / 7 + 4 / 3) / 2)


def test_length_alone_does_not_make_answers_dull() -> None:
    """A uniform writer of 100 words: N/C falls from 0.95 to 0.43 between 10 and 200 words, the adjusted one stays near 1."""
    draw = torch.Generator().manual_seed(0)
    short, long = (torch.randint(0, 100, (n,), generator=draw).tolist() for n in (10, 200))
    assert distinct([short], 1, 100) == pytest.approx(1, abs=0.1) and distinct([long], 1, 100) == pytest.approx(
        1, abs=0.1
    )
    assert len(set(long)) / 200 < 0.5


def test_per_input_and_across_input_differ() -> None:
    """The same two answers to every prompt: varied within a prompt, not from prompt to prompt."""
    template = [[["x", "y", "z"], ["u", "v", "w"]] for _ in range(4)]
    own = [[f"{i} a b".split()] * 2 for i in ("one", "two", "three", "four")]
    assert per_input(template) > per_input(own)
    assert across_input(template) < across_input(own)


@pytest.mark.derived("eval/win-rate")
def test_win_rate() -> None:
    assert win_rate([1.0, 2.0, 3.0, 0.0], [0.0, 2.0, 4.0, -1.0]) == (1 + 0.5 + 0 + 1) / 4
    with pytest.raises(UserError, match="got 1 and 2"):
        win_rate([1.0], [1.0, 2.0])


@pytest.mark.derived("eval/overoptimisation")
def test_overoptimisation() -> None:
    points = [Point(0, 0, 0.0), Point(1, 1, 0.8), Point(4, 2, 0.9), Point(9, 3, 0.4)]
    found = overoptimisation(points)
    assert found["gold_best"] == 0.9 and found["kl_at_best"] == 4
    assert found["lost"] == pytest.approx(0.5) and found["bought"] == 1.0
    assert overoptimisation(points[:3])["lost"] == 0.0
    with pytest.raises(UserError, match="at least one point"):
        overoptimisation([])


@pytest.mark.parametrize("kind", ["rl", "best-of-n"])
def test_the_law_is_found_again(kind: str) -> None:
    """Points on R(d) = d (2 - 0.5 f(d)), d = sqrt(KL), above a start of 0.3 give back 2 and 0.5."""

    def gold(d: float) -> float:
        return 0.3 + d * (2 - 0.5 * (math.log(d) if kind == "rl" else d))

    points = [Point(0, 0, 0.3)] + [Point(d * d, 0, gold(d)) for d in (0.5, 1.0, 2.0, 4.0)]
    assert fit(points, kind) == pytest.approx((2.0, 0.5))
    with pytest.raises(UserError, match="two points"):
        fit(points[:2], kind)
