"""Accuracy on held-out problems: the task's own grader on answers drawn as in training; or a reward where it has none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import Part
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.base import size_of
from posttrain.inference.sampling import Sampling

EVAL_SEED = 20_000  # apart from every training seed; the same problems and draws before and after


@dataclass
class Score:
    """Mean grade over problems, its standard error, and the answers behind it.

    name is what the grade is: "accuracy", or "reward" where a task cannot grade and the run's reward stands in.
    """

    accuracy: float
    error: float
    problems: int
    tokens: float
    rollouts: list[Rollout]
    name: str = "accuracy"


def accuracy(
    policy: Any, env: Any, problems: int, how: Sampling, n: int = 1, split: str = "test", rollout: Part | None = None
) -> Score:  # fmt: skip
    """n answers to each of the first `problems` held-out problems; temperature 0 in `how` makes it greedy. With a rollout
    that is how the policy answers (`at_test`), they are made by it."""
    prompts = held_out(env, problems, split)
    if rollout is None:
        made = policy.sample(prompts, n, how, EVAL_SEED, 0)
    else:
        made = [
            g.rollouts for g in rollout.but(n=n)(RolloutRequest({"policy": policy}, prompts, how, EVAL_SEED, 0, env))
        ]
    for rollouts in made:
        for r in rollouts:
            r.reward = float(env.grade(r.prompt, r.text))
    return score_of(made, "accuracy")


def mean_reward(policy: Any, env: Any, problems: int, how: Sampling, scorer: Any, rollout: Part | None = None) -> Score:
    """The same by a scorer: for prompts without gold answers, and for episodes that pay their turns. What could not be scored
    is left out, not worth 0."""
    groups = made_by(rollout, policy, env, held_out(env, problems, "test"), how, 1)
    scorer.score(groups)
    return score_of([g.rollouts for g in groups], "reward")


def made_by(rollout: Part | None, policy: Any, env: Any, prompts: list[Prompt], how: Sampling, n: int) -> list[Group]:
    """n answers to each prompt, by the rollout that is how the policy answers, else sampled."""
    if rollout is None:
        made = policy.sample(prompts, n, how, EVAL_SEED, 0)
        return [Group(p, rollouts) for p, rollouts in zip(prompts, made, strict=True)]
    policies = policy if isinstance(policy, dict) else {"policy": policy}
    return list(rollout.but(n=n)(RolloutRequest(policies, prompts, how, EVAL_SEED, 0, env)))


def held_out(env: Any, problems: int, split: str) -> list[Prompt]:
    """The first problems of a split, as many as there are."""
    size = size_of(env, split) or problems
    return [env.prompt(i, split) for i in range(min(problems, size))]


def score_of(made: list[list[Rollout]], name: str) -> Score:
    """Mean and standard error over problems; sqrt(var / n), problems without a scored answer left out."""
    scored = [[r.total for r in rollouts if r.reward is not None and not r.failed] for rollouts in made]
    means = [sum(rewards) / len(rewards) for rewards in scored if rewards]
    mean = sum(means) / len(means) if means else (math.nan if made else 0.0)
    var = sum((m - mean) ** 2 for m in means) / max(len(means) - 1, 1)
    flat = [r for rollouts in made for r in rollouts]
    tokens = sum(len(r) for r in flat) / max(len(flat), 1)
    return Score(mean, math.sqrt(var / max(len(means), 1)), len(made), tokens, flat, name)
