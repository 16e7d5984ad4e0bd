"""Accuracy on held-out problems: the task's own grader on answers drawn as in training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from posttrain.core.types import Rollout
from posttrain.engines.sampling import Sampling
from posttrain.environments.base import size_of

EVAL_SEED = 20_000  # apart from every training seed; the same problems and draws before and after


@dataclass
class Score:
    """Mean grade over problems, its standard error, and the answers behind it."""

    accuracy: float
    error: float
    problems: int
    tokens: float
    rollouts: list[Rollout]


def accuracy(policy: Any, env: Any, problems: int, how: Sampling, n: int = 1, split: str = "test") -> Score:
    """n answers to each of the first `problems` held-out problems; temperature 0 in `how` makes it greedy."""
    size = size_of(env, split) or problems
    prompts = [env.prompt(i, split) for i in range(min(problems, size))]
    made = policy.sample(prompts, n, how, EVAL_SEED, 0)
    means = []
    for rollouts in made:
        for r in rollouts:
            r.reward = float(env.grade(r.prompt, r.text))
        means.append(sum(r.reward or 0.0 for r in rollouts) / n)
    mean = sum(means) / max(len(means), 1)
    var = sum((m - mean) ** 2 for m in means) / max(len(means) - 1, 1)
    flat = [r for rollouts in made for r in rollouts]
    tokens = sum(len(r) for r in flat) / max(len(flat), 1)
    return Score(mean, math.sqrt(var / max(len(means), 1)), len(prompts), tokens, flat)
