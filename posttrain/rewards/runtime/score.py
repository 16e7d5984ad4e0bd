"""Rewards for rollouts. A failed reward is data: the rollout is masked and counted, never worth 0; the run goes on."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.selfcheck import check_ready
from posttrain.core.types import Group, Prompt
from posttrain.rewards.runtime.conventions import Answers, Call, adapt, call_many, call_many_async
from posttrain.rewards.runtime.timeout_pool import EventLoop, Failure, run_items

_ASYNC = 8  # coroutines for each worker: they mostly wait
NAN = float("nan")


@dataclass
class RewardReport:
    """How one reward went: its mean over what could be scored, what failed and why, and how long it took."""

    name: str
    n: int = 0
    failed: int = 0  # raised, late or not a number
    late: int = 0  # of those, the ones that ran out of time
    skipped: int = 0  # a TRL reward said None: it does not apply here
    mean: float = NAN
    seconds: float = 0.0
    error: str = ""  # the first failure
    where: str = ""  # the last line of its traceback


@dataclass
class ScoreReport:
    """How a scoring went."""

    n: int = 0
    masked: int = 0
    seconds: float = 0.0
    rewards: list[RewardReport] = field(default_factory=list)

    @property
    def all_failed(self) -> list[str]:
        """Rewards that failed on every answer: a mistake in the reward rather than in the answers."""
        return [r.name for r in self.rewards if r.n and r.failed == r.n]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a log or a page."""
        return asdict(self)

    def metrics(self) -> dict[str, float]:
        """The numbers worth a curve."""
        out = {"reward/masked": float(self.masked)}
        for r in self.rewards:
            out |= {f"reward/{r.name}/mean": r.mean, f"reward/{r.name}/failed": float(r.failed)}
        return out

    def __str__(self) -> str:
        bad = [r for r in self.rewards if r.failed]
        told = [f"; {r.name} failed on {r.failed} of {r.n} ({r.error}{r.where and f' at {r.where}'})" for r in bad]
        return f"{self.n} rollouts scored, {self.masked} masked" + "".join(told)


class Scorer:
    """Several rewards, weighted: Scorer([("right", numeric, 1.0), ("short", my_function, 0.1)]).

    A reward is a registered rule, or a function in one of the ways of rewards/conventions.py. `timeout` is for one call
    (one answer, or the whole batch for a function that takes it at once), `workers` how many calls run side by side.
    """

    def __init__(
        self, rewards: Sequence[tuple[str, Callable[..., Any], float]], timeout: float = 10.0, workers: int = 8
    ) -> None:
        if not rewards:
            raise UserError("nothing to score with; give at least one reward, like [('right', numeric, 1.0)]")
        names = [name for name, _, _ in rewards]
        if len(set(names)) < len(names):
            raise UserError(f"two rewards have the same name in {names}; a rollout keeps one number for each name")
        if timeout <= 0 or workers < 1:
            raise UserError(f"a scorer needs timeout > 0 and workers >= 1, got timeout={timeout}, workers={workers}")
        self.timeout, self.workers = timeout, workers
        self.weights = {name: float(weight) for name, _, weight in rewards}
        self.calls = {name: _checked(fn) for name, fn, _ in rewards}
        self.loop = EventLoop()

    def score(self, groups: Sequence[Group]) -> ScoreReport:
        """Set reward (the weighted sum) and rewards (by name) of every rollout; NaN where a reward failed."""
        began = time.perf_counter()
        rollouts = [r for group in groups for r in group.rollouts]
        answers = Answers(
            [r.prompt for r in rollouts], [r.text for r in rollouts], lambda: [r.actions.tolist() for r in rollouts]
        )
        found, reports = self._all(answers)
        for i, rollout in enumerate(rollouts):
            row = {name: outcomes[i] for name, outcomes in found.items()}
            rollout.rewards = {name: x if isinstance(x, float) else NAN for name, x in row.items()}
            rollout.reward = total(row, self.weights)
        masked = sum(r.failed for r in rollouts)
        return ScoreReport(len(rollouts), masked, time.perf_counter() - began, reports)

    def texts(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> tuple[list[float], ScoreReport]:
        """The weighted sums for plain texts, NaN where a reward failed."""
        began = time.perf_counter()
        found, reports = self._all(Answers(prompts, texts, lambda: [[] for _ in texts]))
        totals = [total({name: xs[i] for name, xs in found.items()}, self.weights) for i in range(len(texts))]
        masked = sum(math.isnan(x) for x in totals)
        return totals, ScoreReport(len(texts), masked, time.perf_counter() - began, reports)

    def _all(self, answers: Answers) -> tuple[dict[str, list[Any]], list[RewardReport]]:
        """Outcomes by reward, in the order they were given; asynchronous ones run while the others do."""
        pending = {n: self._begin(c, answers) for n, c in self.calls.items() if c.asynchronous}
        found: dict[str, list[Any]] = {}
        reports = []
        for name, call in self.calls.items():
            began = time.perf_counter()
            raw = pending[name]() if name in pending else self._sync(call, answers)
            found[name] = _outcomes(call, raw, len(answers.texts))
            reports.append(_report(name, found[name], time.perf_counter() - began))
        return found, reports

    def _sync(self, call: Call, answers: Answers) -> list[Any]:
        n = len(answers.texts)
        if call.kind != "one":
            return run_items(lambda _: call_many(call, answers), min(n, 1), self.timeout, 1)
        return run_items(lambda i: call.fn(answers.prompts[i], answers.texts[i]), n, self.timeout, self.workers)

    def _begin(self, call: Call, answers: Answers) -> Callable[[], list[Any]]:
        n = len(answers.texts)
        if call.kind != "one":
            return self.loop.start(lambda _: call_many_async(call, answers), min(n, 1), self.timeout, 1)
        one = call.fn
        limit = self.workers * _ASYNC
        return self.loop.start(lambda i: one(answers.prompts[i], answers.texts[i]), n, self.timeout, limit)


def _checked(fn: Any) -> Call:
    """A reward that could work, and how to call it."""
    check_ready(fn)
    return adapt(fn)


def _outcomes(call: Call, raw: list[Any], n: int) -> list[Any]:
    """A float, None (a TRL reward that does not apply) or a Failure for each answer."""
    if call.kind == "one":
        return [as_number(x) for x in raw]
    whole = raw[0] if raw else []
    if isinstance(whole, Failure):
        return [whole] * n
    listed = whole.tolist() if hasattr(whole, "tolist") else whole
    if not isinstance(listed, (list, tuple)) or len(listed) != n:
        many = isinstance(listed, (list, tuple))
        got = f"a list of {len(listed)}" if many else f"{type(listed).__name__} {listed!r}"[:80]
        return [Failure("not a number", f"returned {got}, expected a list of {n} numbers")] * n
    return [None if x is None and call.kind == "trl" else as_number(x) for x in listed]


def as_number(x: Any) -> float | Failure:
    """A finite float, or the Failure that says what came instead."""
    if isinstance(x, Failure):
        return x
    if inspect.iscoroutine(x):
        x.close()
        return Failure("not a number", "returned a coroutine; declare the reward with `async def`")
    if hasattr(x, "item"):  # a scalar of numpy or torch; larger arrays are told as what they are
        with suppress(ValueError, RuntimeError):
            x = x.item()
    if not isinstance(x, Real):
        return Failure("not a number", f"returned {type(x).__name__} {x!r}"[:120] + ", expected a number")
    value = float(x)
    return value if math.isfinite(value) else Failure("not a number", f"returned {value}, expected a finite number")


def total(row: dict[str, Any], weights: dict[str, float]) -> float:
    """sum_k w_k r_k; NaN when one that counts failed, or none applies. Weight 0 is only watched: it cannot mask."""
    counted = {name: x for name, x in row.items() if weights[name] != 0 and x is not None}
    if any(isinstance(x, Failure) for x in counted.values()):
        return NAN
    if not counted:
        return 0.0 if row and all(weights[name] == 0 for name in row) else NAN
    return math.fsum(weights[name] * x for name, x in counted.items())


def _report(name: str, outcomes: list[Any], seconds: float) -> RewardReport:
    good = [x for x in outcomes if isinstance(x, float)]
    bad = [x for x in outcomes if isinstance(x, Failure)]
    first = bad[0] if bad else Failure("", "")
    mean = math.fsum(good) / len(good) if good else NAN
    late, skipped = sum(b.kind == "late" for b in bad), sum(x is None for x in outcomes)
    return RewardReport(name, len(outcomes), len(bad), late, skipped, mean, seconds, first.error, first.where)
