"""Several rewards as one scorer: each called with a time limit, their numbers weighted and summed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.selfcheck import check_ready
from posttrain.core.types import Group, Prompt
from posttrain.rewards.runtime.ahead import Ahead
from posttrain.rewards.runtime.conventions import Answers, Call, adapt, call_many, call_many_async
from posttrain.rewards.runtime.scorer import (
    NAN,
    BaseScorer,
    Outcome,
    RewardReport,
    ScoreReport,
    Verdict,
    answers_of,
    as_number,
    aside,
    report_of,
    texts_of,
)
from posttrain.rewards.runtime.timeout_pool import EventLoop, Failure, run_items

_ASYNC = 8  # coroutines for each worker: they mostly wait
Ask = Callable[[Any], list[Outcome]]  # a scorer -> what it says of the answers at hand


class RewardSum(BaseScorer):
    """Several rewards, weighted: RewardSum([("right", numeric, 1.0), ("short", my_function, 0.1)]).

    A reward is a registered rule, a function in one of the ways of conventions.py, or another scorer. `timeout`
    is for one call (one answer, or the whole batch for a function that takes it at once), `workers` how many calls run
    side by side; scorers keep their own time.
    """

    def __init__(self, rewards: Sequence[tuple[str, Any, float]], timeout: float = 10.0, workers: int = 8) -> None:
        if not rewards:
            raise UserError("nothing to score with; give at least one reward, like [('right', numeric, 1.0)]")
        names = [name for name, _, _ in rewards]
        if len(set(names)) < len(names):
            raise UserError(f"two rewards have the same name in {names}; a rollout keeps one number for each name")
        if timeout <= 0 or workers < 1:
            raise UserError(f"a scorer needs timeout > 0 and workers >= 1, got timeout={timeout}, workers={workers}")
        self.name, self.timeout, self.workers = " + ".join(names), timeout, workers
        self.weights = {name: float(weight) for name, _, weight in rewards}
        self.rewards = {name: fn if is_scorer(fn) else _checked(fn) for name, fn, _ in rewards}
        self.loop = EventLoop()
        self.begun = Ahead(timeout, workers)

    @property
    def ahead(self) -> list[str]:
        """Rewards that can be begun when an answer ends: those of one answer, not asynchronous."""
        return [n for n, c in self.rewards.items() if isinstance(c, Call) and c.kind == "one" and not c.asynchronous]

    def begin(self, prompt: Prompt, index: int, text: Callable[[], str]) -> None:
        """An answer has ended: its rewards are begun while others are sampled. `text` decodes it, in the thread that grades."""
        for name in self.ahead:
            fn = self.rewards[name].fn

            def call(fn: Callable[..., Any] = fn) -> tuple[str, Any]:
                decoded = text()
                return decoded, fn(prompt, decoded)

            self.begun.begin((name, prompt.id, index), call)

    def score(self, groups: list[Group]) -> ScoreReport:
        """Set reward (the weighted sum) and rewards (by name) of every rollout; NaN where a reward failed."""
        began, rollouts = time.perf_counter(), answers_of(groups)
        answers = Answers(
            [r.prompt for r in rollouts],
            [r.text for r in rollouts],
            lambda: [r.actions.tolist() for r in rollouts],
            [r.index for r in rollouts],
        )
        rows, reports = self._rows(answers, lambda scorer: aside(scorer, groups))
        self.begun.forget()
        return self.written(groups, [Verdict(total(row, self.weights), row) for row in rows], reports, began)

    def texts(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> tuple[list[float], ScoreReport]:
        """The weighted sums for plain texts, NaN where a reward failed."""
        began = time.perf_counter()
        answers = Answers(prompts, texts, lambda: [[] for _ in texts])
        rows, reports = self._rows(answers, lambda scorer: [as_number(x) for x in texts_of(scorer, prompts, texts)])
        totals = [total(row, self.weights) for row in rows]
        masked = sum(math.isnan(x) for x in totals)
        return totals, ScoreReport(len(texts), masked, time.perf_counter() - began, reports)

    def _rows(self, answers: Answers, ask: Ask) -> tuple[list[dict[str, Outcome]], list[RewardReport]]:
        """The outcomes of each answer by reward, in the order they were given; asynchronous ones run while others do."""
        n = len(answers.texts)
        pending = {
            name: self._begin(call, answers)
            for name, call in self.rewards.items()
            if isinstance(call, Call) and call.asynchronous
        }
        found: dict[str, list[Outcome]] = {}
        reports = []
        for name, reward in self.rewards.items():
            began = time.perf_counter()
            if isinstance(reward, Call):
                found[name] = _outcomes(
                    reward, pending[name]() if name in pending else self._sync(name, reward, answers), n
                )
            else:
                found[name] = ask(reward)
            reports.append(report_of(name, found[name], time.perf_counter() - began))
            reports[-1].counts = getattr(reward, "spent", {})
        return [{name: outcomes[i] for name, outcomes in found.items()} for i in range(n)], reports

    def _sync(self, name: str, call: Call, answers: Answers) -> list[Any]:
        n = len(answers.texts)
        if call.kind != "one":
            return run_items(lambda _: call_many(call, answers), min(n, 1), self.timeout, 1)
        out = self._graded_ahead(name, answers)
        left = [i for i in range(n) if i not in out]
        fresh = run_items(
            lambda k: call.fn(answers.prompts[left[k]], answers.texts[left[k]]), len(left), self.timeout, self.workers
        )
        out |= dict(zip(left, fresh, strict=True))
        return [out[i] for i in range(n)]

    def _graded_ahead(self, name: str, answers: Answers) -> dict[int, Any]:
        """What was begun as answers ended, by answer; one whose text has changed since is graded again."""
        out: dict[int, Any] = {}
        begun = [self.begun.take((name, p.id, k)) for p, k in zip(answers.prompts, answers.index, strict=False)]
        for i, item in enumerate(begun):
            got = self.begun.result(item) if item is not None else ("", None)
            if isinstance(got, Failure):
                out[i] = got
            elif item is not None and got[0] == answers.texts[i]:
                out[i] = got[1]
        return out

    def _begin(self, call: Call, answers: Answers) -> Callable[[], list[Any]]:
        n = len(answers.texts)
        if call.kind != "one":
            return self.loop.start(lambda _: call_many_async(call, answers), min(n, 1), self.timeout, 1)
        one = call.fn
        limit = self.workers * _ASYNC
        return self.loop.start(lambda i: one(answers.prompts[i], answers.texts[i]), n, self.timeout, limit)


def is_scorer(fn: Any) -> bool:
    """A scorer, and not also a function of texts that can be called like any other reward."""
    return hasattr(fn, "score") and not callable(fn)


def _checked(fn: Any) -> Call:
    """A reward that could work, and how to call it."""
    check_ready(fn)
    return adapt(fn)


def _outcomes(call: Call, raw: list[Any], n: int) -> list[Outcome]:
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


def total(row: dict[str, Any], weights: dict[str, float]) -> float:
    """sum_k w_k r_k; NaN when one that counts failed, or none applies. A reward with weight 0 is logged but never masks."""
    counted = {name: x for name, x in row.items() if weights[name] != 0 and x is not None}
    if any(isinstance(x, Failure) for x in counted.values()):
        return NAN
    if not counted:
        return 0.0 if row and all(weights[name] == 0 for name in row) else NAN
    return math.fsum(weights[name] * x for name, x in counted.items())
