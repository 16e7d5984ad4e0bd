"""What an arm may measure besides accuracy, as `further` of `Bench.measured`: entropy, pass@k, the length of wrong answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from claims.machinery.arms import Further
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Rollout
from posttrain.evals.accuracy import accuracy
from posttrain.evals.pass_at_k import mean_pass_at_k

Figure = Callable[[list[list[Rollout]]], float]  # of graded answers, problem by problem


def sampled(figures: Mapping[str, Figure], how: Sampling, problems: int = 200, n: int = 1) -> Further:
    """These figures of n sampled answers to each of the first held-out problems."""

    def further(policy: Policy, env: Environment) -> dict[str, float]:
        made = accuracy(policy, env, problems, how, n).rollouts
        groups = [made[i : i + n] for i in range(0, len(made), n)]
        return {name: figure(groups) for name, figure in figures.items()}

    return further


def entropy(groups: list[list[Rollout]]) -> float:
    """-log p of the tokens that were drawn, on average: the entropy per token, in nats."""
    logp: list[float] = [x for g in groups for r in g for x in r.logp_T.tolist()]
    return -sum(logp) / max(len(logp), 1)


def pass_at(k: int) -> Figure:
    """The chance that one of k answers is right."""
    return lambda groups: mean_pass_at_k(len(groups[0]), [sum(r.total > 0.5 for r in g) for g in groups], k)[0]


def wrong_length(groups: list[list[Rollout]]) -> float:
    """Tokens of the wrong answers, on average; 0 where there is none."""
    wrong = [len(r) for g in groups for r in g if r.total <= 0.5]
    return sum(wrong) / max(len(wrong), 1)
