"""What the loop holds: the live parts of a method, the learner, the run that remembers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.types import Group


@dataclass
class Loop:
    """Built by `posttrain.api`; `train` drives it. Everything with state is listed in `stateful`."""

    config: Config
    method: Method
    env: Any
    learner: Any
    source: Any
    scorer: Any
    curriculum: Any
    run: Any
    evaluate: Any = None  # step -> metrics, or None
    phase: str = "train"
    role: str = "policy"  # what is trained: a plan also trains reward models, verifiers, opponents
    keep: list[Any] = field(default_factory=list)
    shaping: list[Any] = field(default_factory=list)
    watch: Any = None  # called with (step, metrics) after every step: the display
    guard: Any = None
    advantage: Any = field(init=False)

    def __post_init__(self) -> None:
        self.advantage = self.method.advantage.live()

    def steps(self) -> Iterator[int]:
        """The steps still to do; the first is the one after the last good checkpoint."""
        first = self.run.restore(self)
        self._began = time.perf_counter()
        yield from range(first, self.config.steps)

    def stateful(self) -> dict[str, Any]:
        """Parts whose state must survive a restart, by name."""
        named = {"curriculum": self.curriculum, "advantage": self.advantage}
        named |= {f"keep{i}": p for i, p in enumerate(self.keep)}
        named |= {f"shaping{i}": p for i, p in enumerate(self.shaping)}
        return {k: p for k, p in named.items() if hasattr(p, "state_dict")}

    def record(self, step: int, groups: list[Group], kept: list[Group], report: Any, seen: dict[str, float]) -> None:
        """Metrics, rollouts, evaluation and checkpoint of a step."""
        if step == 0 and report.all_failed:  # later, a whole step of failures is survived like any other
            raise UserError(
                f"the reward failed on every answer of the first step, so nothing could be learned: {report}"
            )
        metrics = describe(groups, kept) | report.metrics() | seen
        if self.guard is not None:
            self.guard.check(step, groups, seen, self)
        every = self.config.eval_every
        if self.evaluate and every and (step + 1) % every == 0 and step + 1 < self.config.steps:
            metrics |= self.evaluate(self.learner.policy)
        seconds = time.perf_counter() - self._began
        self._began = time.perf_counter()
        self.run.log(self.phase, step, metrics, groups, seconds)
        if self.watch:
            self.watch(step, metrics | {"seconds": seconds})
        last = step + 1 == self.config.steps
        if last or (step + 1) % self.config.save_every == 0:
            self.run.save(self, step)


def describe(groups: list[Group], kept: list[Group]) -> dict[str, float]:
    """What the rollouts of a step looked like. Every figure is a function of them alone, so a resumed run repeats it."""
    rollouts = [r for g in groups for r in g.rollouts]
    turns = [t for r in rollouts for t in (*r.earlier, r)]
    scored = [r.reward for g in groups for r in g.scored if r.reward is not None]
    tokens = sum(map(len, turns))
    logp = sum(float((t.logp_T * t.mask_T).sum()) for t in turns)
    out = {
        "reward": sum(scored) / len(scored) if scored else math.nan,
        "failed": float(sum(r.failed for r in rollouts)),
        "groups_kept": len(kept) / max(len(groups), 1),
        "tokens": float(tokens),
        "length": tokens / max(len(rollouts), 1),
        "truncated": sum(not r.stopped for r in rollouts) / max(len(rollouts), 1),
        "surprise": -logp / max(tokens, 1),  # mean -log p of what was sampled: an unbiased entropy estimate
    }
    names = sorted({k for r in rollouts for k in r.rewards})
    for name in names if len(names) > 1 else ():
        values = [r.rewards[name] for r in rollouts if name in r.rewards and r.rewards[name] == r.rewards[name]]
        out[f"reward/{name}"] = sum(values) / len(values) if values else math.nan
    return out
