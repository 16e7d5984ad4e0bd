"""Accuracy on held-out problems: answers drawn as in training, graded by the scorer of training.

A grade that fails is left out and counted, as in training: it never counts as 0, and it does not end the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from posttrain.core.protocols import Environment, Policy, RolloutRequest
from posttrain.core.ranks import scored
from posttrain.core.registry import Part
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.base import SPLITS, size_of
from posttrain.environments.data import DataEnvironment
from posttrain.rewards.runtime.scorer import Scorer
from posttrain.rewards.scorers.spec import task_scorer

EVAL_SEED = 20_000  # apart from every training seed; the same problems and draws before and after


@dataclass
class Score:
    """Mean grade over problems, its standard error, and the answers behind it.

    name is what the grade is: "accuracy", or "reward" where a task cannot grade and the run's reward stands in. of is
    what was graded: "problems", "prompts" without a right answer, or "pairs" to be ranked.
    """

    accuracy: float
    error: float
    problems: int
    tokens: float
    rollouts: list[Rollout]
    name: str = "accuracy"
    failed: int = 0  # answers that could not be graded: left out of the mean
    why: str = ""  # the first of those failures
    of: str = "problems"
    margin: float = math.nan  # of pairs: how far the preferred answer is ahead, on average

    @property
    def told(self) -> str:
        """How many answers could not be graded, and why; empty where all could."""
        return f"{self.failed} of {len(self.rollouts)} could not be graded: {self.why}" if self.failed else ""


def accuracy(
    policy: Policy, env: Environment, problems: int, how: Sampling, n: int = 1, split: str = "test", rollout: Part | None = None
) -> Score:  # fmt: skip
    """n answers to each of the first `problems` held-out problems; temperature 0 in `how` makes it greedy. With a rollout
    that is how the policy answers (`at_test`), they are made by it."""
    return graded(answers(policy, env, held_out(env, problems, split), how, n, rollout), task_scorer(env), "accuracy")


def answers(
    policy: Policy | Mapping[str, Policy], env: Environment, prompts: list[Prompt], how: Sampling, n: int = 1, rollout: Part | None = None
) -> list[Group]:  # fmt: skip
    """n answers to each prompt, the same ones whenever the policy is the same; by the rollout that is how the policy answers,
    else sampled. A mapping of policies plays roles."""
    if rollout is None:
        if isinstance(policy, Mapping):
            policy = policy["policy"]
        made = policy.sample(prompts, n, how, EVAL_SEED, 0)
        return [Group(p, some) for p, some in zip(prompts, made, strict=True)]
    policies = dict(policy) if isinstance(policy, Mapping) else {"policy": policy}
    return list(rollout.but(n=n)(RolloutRequest(policies, prompts, how, EVAL_SEED, 0, env)))


def graded(groups: list[Group], scorer: Scorer, name: str) -> Score:
    """The answers as the scorer grades them; what failed is counted."""
    groups, report = scored(scorer, groups)
    found = score_of([g.rollouts for g in groups], name)
    found.failed, found.why = report.masked, report.why
    return found


def mean_reward(
    policy: Policy | Mapping[str, Policy], env: Environment, problems: int, how: Sampling, scorer: Scorer, rollout: Part | None = None
) -> Score:  # fmt: skip
    """The same by a scorer: for prompts without gold answers, and for episodes that give rewards per turn. What could not be scored
    is left out, and does not count as 0."""
    return graded(answers(policy, env, held_out(env, problems, "test"), how, 1, rollout), scorer, "reward")


def held_out(env: Environment, problems: int, split: str) -> list[Prompt]:
    """The first problems of a split, as many as there are; "all": those of test, then those of train."""
    if split == "all":
        first = held_out(env, problems, "test")
        return first + held_out(env, problems - len(first), "train")
    size = size_of(env, split) or problems
    return [env.prompt(i, split) for i in range(min(problems, size))]


def asked_for(env: Environment, problems: int, split: str) -> list[Prompt]:
    """The same; of rows that have none for one split, all are those of the other."""
    only = [s for s in SPLITS if env.size(s)] if isinstance(env, DataEnvironment) else []
    return held_out(env, problems, only[0] if split == "all" and len(only) == 1 else split)


def score_of(made: list[list[Rollout]], name: str) -> Score:
    """Mean and standard error over problems; sqrt(var / n), problems without a scored answer left out."""
    scored = [[r.total for r in rollouts if r.reward is not None and not r.failed] for rollouts in made]
    means = [sum(rewards) / len(rewards) for rewards in scored if rewards]
    mean = sum(means) / len(means) if means else (math.nan if made else 0.0)
    var = sum((m - mean) ** 2 for m in means) / max(len(means) - 1, 1)
    flat = [r for rollouts in made for r in rollouts]
    tokens = sum(len(r) for r in flat) / max(len(flat), 1)
    of = "problems" if name == "accuracy" else "prompts"
    return Score(mean, math.sqrt(var / max(len(means), 1)), len(made), tokens, flat, name, of=of)
