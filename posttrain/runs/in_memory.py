"""The real loop around a small policy, kept in memory: the same stages, learner and guard as any run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posttrain.core.config import Config, followed
from posttrain.core.loop import Loop
from posttrain.core.method import Method
from posttrain.core.protocols import Environment, Policy, Scorer
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.runtime.scorer import BaseScorer, Prescored, Verdict, answers_of
from posttrain.rollouts.sources import LocalSource
from posttrain.runs.guard import Guard
from posttrain.runs.reader import is_time
from posttrain.train import train
from posttrain.weights.learner import Learner


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in parallel round differently from machine to machine; one thread does not, and is as fast at this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass
class InMemoryRun:
    """A run that keeps its metrics in memory and writes nothing."""

    rows: list[dict[str, float]] = field(default_factory=list)

    def restore(self, loop: Any) -> int:
        return 0

    def log(self, phase: str, step: int, metrics: dict[str, float], groups: list[Group], seconds: float) -> None:
        self.rows.append({k: x for k, x in metrics.items() if not is_time(k)})

    def prepare(self, loop: Any) -> None:
        pass

    def save(self, loop: Any, step: int, now: bool = False) -> None:
        pass

    def written(self) -> list[int]:
        return []

    def event(self, phase: str, step: int, kind: str, message: str) -> None:
        pass


class Listed(Environment):
    """Prompts in a list as an environment: the same ones for training and test."""

    def __init__(self, prompts: Sequence[Prompt], name: str = "listed") -> None:
        self.prompts, self.name, self.size = list(prompts), name, len(prompts)

    def prompt(self, index: int, split: str = "train") -> Prompt:
        return self.prompts[index % len(self.prompts)]


def numbered(P: int) -> Listed:
    """P prompts that a tabular policy knows by their row."""
    return Listed([row(i) for i in range(P)])


def repeated(P: int, copies: int) -> Listed:
    """Each of P rows as many prompts, so that one step can ask it many times."""
    return Listed([row(i, k) for k in range(copies) for i in range(P)])


def row(i: int, copy: int | str = "", **info: Any) -> Prompt:
    """The prompt of a row; `copy` gives the same question another identity (another pair, another draw)."""
    return Prompt.text(f"row{i}/{copy}", f"row {i}", row=i, **info)


class FunctionScorer(BaseScorer):
    """A scorer from a function of rollouts: one number for each, read off the letters as sampled."""

    def __init__(self, of: Callable[[list[Rollout]], Tensor]) -> None:
        self.of = of

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        return [Verdict(x) for x in self.of(answers_of(groups)).tolist()]


def loop_of(
    policy: Policy | Mapping[str, Policy],
    method: Method,
    env: Environment,
    config: Config,
    scorer: Scorer | None = None,
    decay: int = 0,
) -> Loop:
    """A loop around a policy that remembers in memory; without a scorer the answers must come with their worth."""
    method = method.within(followed(config))
    settings = (config.seed, config.lr, config.warmup, config.max_norm, config.micro_tokens, decay)
    how = (config.sampling, config.prompts, config.seed)
    policies: dict[str, Policy] = dict(policy) if isinstance(policy, Mapping) else {"policy": policy}
    goals = method.objectives
    return Loop(
        config=config, method=method, env=env, run=InMemoryRun(),
        learners={
            o.role: Learner(
                policies.get(o.role, policies["policy"]), method, *settings, objective=o if i else None,
                schedule="linear" if config.schedule == "constant" else config.schedule, min_lr=config.min_lr,
                critic=method.critic.asked(config),
            )
            for i, o in enumerate(goals)
        },
        source=LocalSource(policies, env, method.rollout, scorer or Prescored(), method.prompts.live(), how),
        select=[p.live() for p in method.select], shaping=[p.live() for p in method.shaping],
    )  # fmt: skip


def fit(
    policy: Policy | Mapping[str, Policy], method: Method, env: Environment, config: Config, scorer: Scorer | None = None,
    after: Callable[[int], None] | None = None, decay: int = 0,
) -> list[dict[str, float]]:  # fmt: skip
    """Train the policy in place as a run would; returns the figures of each step. `after` is called with each step done,
    `decay` is the number of steps over which the learning rate falls as the settings say (0: it stays).

    Without a scorer the answers must come with their rewards (demonstrations, pairs). The guard is strict: a policy whose
    sampler and trainer disagree is an error here, not a warning.
    """
    loop = loop_of(policy, method, env, config, scorer, decay)
    loop.monitors = [Guard(strict=True)]
    loop.callbacks = [After(after)] if after else []
    train(loop)
    if not isinstance(policy, Mapping) and hasattr(policy, "critic"):
        policy.critic = None
    rows: list[dict[str, float]] = loop.run.rows
    return rows


class After:
    """A function of the step, as a callback."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self.call = call

    def on_step(self, loop: Loop, step: int, metrics: dict[str, float]) -> None:
        self.call(step)
