"""What plans with several reward models share: the pairs, a phase for each member, and what came of optimising them."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase
from posttrain.core.protocols import Environment, Policy, Scorer
from posttrain.core.types import Group, Prompt
from posttrain.decoding.best_of_n import best_of_n_kl, expected_best
from posttrain.environments.base import size_of
from posttrain.evals.kl import kl_of
from posttrain.evals.reward_model import margins, pair_accuracy
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.reward_model import reward_model
from posttrain.methods.settings import asked_pairs, asked_task, written
from posttrain.rewards.runtime.scorer import aside
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rewards.scorers.spec import build_scorer

EVAL_SEED = 40_000  # of answers that are looked at, apart from every training seed


def asked_prompts(context: Context, pairs: str = "") -> Environment:
    """What the policy answers: --task where the pairs have a file of their own, else the prompts of the pairs."""
    env: Environment = asked_task(context) if pairs else asked_pairs(context)
    return env


def asked_gold(context: Context, pairs: str = "") -> Scorer | None:
    """What answers are truly worth: --reward, or the task's own grade; None where nothing says."""
    c, env = context.config, asked_prompts(context, pairs)
    if not c.reward and not (pairs and env.graded):
        return None
    context.read.add("reward")
    made: Scorer = build_scorer(c.reward, env, c.reward_timeout, c.device)
    return made


def scoring_copy(policy: Policy, *identity: object) -> Any:
    """A copy with a score head that is drawn by identity: a seed of its own, as reward models of one base differ."""
    made: Any = policy.as_reward_model()
    weight = made.score.out.weight
    with torch.no_grad():
        drawn = torch.randn(weight.shape, generator=rng.torch_generator("score head", *identity))
        weight.copy_(drawn * (weight.shape[-1] + 1) ** -0.5)
    return made


def member(
    role: str, pairs: str, epochs: float, base: Callable[[Context], Policy], method: Method = reward_model
) -> Phase:
    """A phase that trains one reward model on the pairs; its name is its seed: head, order of the pairs."""

    def env(context: Context) -> Any:
        return asked_pairs(context, pairs)

    def judged(context: Context) -> None:
        test = list(getattr(env(context), "test", ()))
        if test:
            found = pair_accuracy(margins(RewardModel(context.role(role)), test))
            context.notes.setdefault("pair_accuracy", {})[role] = found

    return Phase(
        role, method, epochs_of(env, epochs), env, role=role,
        make=lambda c: scoring_copy(base(c), c.config.seed, role), rewards=written, after=judged,
    )  # fmt: skip


def looked_at(context: Context, env: Environment) -> list[Prompt]:
    """Held-out prompts; those of training where nothing is held out."""
    count = max(context.config.eval_problems // 2, 1)
    test = getattr(env, "test", None)
    split = "train" if test is not None and not test else "test"
    size = size_of(env, split) or count
    return [env.prompt(i, split) for i in range(min(count, len(test) if test else size))]


def answered(context: Context, policy: Policy, env: Environment, n: int) -> list[Group]:
    """n answers to each of the prompts that are looked at; the same draws for every policy."""
    prompts = looked_at(context, env)
    made = policy.sample(prompts, n, context.config.sampling, EVAL_SEED, -1)
    return [Group(p, rollouts) for p, rollouts in zip(prompts, made, strict=True)]


def worth(scorer: Scorer, groups: list[Group]) -> list[list[float]]:
    """What a scorer says of each answer, group by group; NaN where it failed."""
    found = iter(aside(scorer, groups))
    told = [[next(found) for _ in g.rollouts] for g in groups]
    return [[x if isinstance(x, float) else float("nan") for x in row] for row in told]


def best_of(proxy_PG: list[list[float]], gold_PG: list[list[float]] | None, most: int) -> dict[str, dict[str, float]]:
    """For n = 1, 2, 4 ... `most`: expected proxy (and gold) of the best of n by the proxy, and its KL, from one set of answers."""
    out: dict[str, dict[str, float]] = {}
    n = 1
    while n <= most:
        rows = [row for row in range(len(proxy_PG)) if _finite(proxy_PG[row], gold_PG[row] if gold_PG else None)]
        if not rows:
            raise UserError("no answer could be scored, so there is no best of n")
        out[str(n)] = {"kl": best_of_n_kl(n), "proxy": fmean(expected_best(proxy_PG[i], proxy_PG[i], n) for i in rows)}
        if gold_PG is not None:
            out[str(n)]["gold"] = fmean(expected_best(proxy_PG[i], gold_PG[i], n) for i in rows)
        n *= 2
    return out


def _finite(*rows: list[float] | None) -> bool:
    return all(x == x for row in rows if row for x in row)


def standing(
    context: Context, policy: Policy, start: Policy, proxy: Scorer, gold: Scorer | None, env: Environment
) -> dict[str, float]:
    """Where a policy stands on prompts that are looked at: proxy, gold where there is one, KL from the start, tokens."""
    groups = answered(context, policy, env, 4)
    rollouts = [r for g in groups for r in g.rollouts]
    found = {"proxy": _mean(worth(proxy, groups)), "kl": kl_of(policy, start, rollouts)[0]}
    if gold is not None:
        found["gold"] = _mean(worth(gold, groups))
    return found | {"tokens": fmean(len(r) for r in rollouts)}


def _mean(rows: list[list[float]]) -> float:
    told = [x for row in rows for x in row if x == x]
    return fmean(told) if told else float("nan")
