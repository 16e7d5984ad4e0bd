"""Several rewards as one scorer: each called with a time limit, their numbers weighted and summed."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.registry import Part
from posttrain.core.selfcheck import check_ready
from posttrain.core.typed import checked
from posttrain.core.types import Group, Prompt
from posttrain.rewards.runtime.ahead import Ahead
from posttrain.rewards.runtime.calls import begin_async, sync_outcomes
from posttrain.rewards.runtime.conventions import Answers, Call, adapt, own, part
from posttrain.rewards.runtime.divided import Share, sampled, shared, together
from posttrain.rewards.runtime.file_ahead import FileAhead
from posttrain.rewards.runtime.file_reward import FileReward, member
from posttrain.rewards.runtime.messages import Unreadable
from posttrain.rewards.runtime.outcome import MOST, Failure, finite
from posttrain.rewards.runtime.scorer import (
    NAN,
    BaseScorer,
    Outcome,
    RewardReport,
    ScoreReport,
    Verdict,
    as_number,
    aside,
    report_of,
    texts_of,
)
from posttrain.rewards.runtime.timeout_pool import EventLoop

Elsewhere = Callable[[str, Answers], Callable[[], list[Outcome]]]  # a reward and answers -> what waits for its outcomes
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
        if not 0 < timeout <= 1e6 or workers < 1:
            raise UserError(
                f"a scorer needs a timeout of more than 0 and at most 1e6 s, and workers >= 1, got timeout={timeout}, workers={workers}"
            )
        self.name, self.timeout, self.workers = " + ".join(names), timeout, workers
        self.weights = {name: float(checked(f"the weight of {name}", weight, float)) for name, _, weight in rewards}
        self.rewards: dict[str, Any] = {
            name: fn if is_scorer(fn) or isinstance(fn, FileReward) else _checked(fn) for name, fn, _ in rewards
        }
        self.loop = EventLoop()
        self.begun = Ahead(timeout, workers)
        self.files = {n: FileAhead(r, timeout, workers) for n, r in self.rewards.items() if _of_one(r)}
        self._elsewhere: Elsewhere | None = None  # who is asked for rewards of single answers, in place of this process
        self.divides = bool(self.singles)  # among the processes of a run, unless workers are asked
        self._lock = threading.RLock()  # a lag scores a step while another thread evaluates

    @property
    def singles(self) -> list[str]:
        """Rewards that are asked about one answer at a time, so that answers may be given out to several processes."""
        return [n for n, r in self.rewards.items() if _of_one(r) or (isinstance(r, Call) and r.kind == "one")]

    def outcomes(self, name: str, answers: Answers) -> list[Outcome]:
        """What one reward of single answers says of each."""
        reward = self.rewards[name]
        if isinstance(reward, FileReward):
            return reward.outcomes(answers, self.timeout, self.workers)
        if reward.asynchronous:
            return begin_async(self.loop, reward, answers, self.timeout, self.workers)()
        return sync_outcomes(reward, answers, self.timeout, self.workers)

    @property
    def ahead(self) -> list[str]:
        """Rewards of this process that can be begun when an answer ends: those of one answer, not asynchronous."""
        return [n for n, c in self.rewards.items() if isinstance(c, Call) and c.kind == "one" and not c.asynchronous]

    def begin(self, prompt: Prompt, index: int, text: Callable[[], str]) -> None:
        """An answer has ended: its rewards are begun while others are sampled. `text` decodes it, in the thread that grades."""
        if self._elsewhere is not None:
            return
        for name in self.ahead:
            fn = self.rewards[name].fn

            def call(fn: Callable[..., Any] = fn) -> tuple[str, Any]:
                decoded = text()
                return decoded, as_number(fn(prompt if isinstance(fn, Part) else own(prompt), decoded))

            self.begun.begin((name, prompt.id, index), call)
        for file in self.files.values():
            file.begin(prompt, index, text)

    def some(self, groups: list[Group], rank: int, world: int) -> Share:
        """What the rewards of single answers say of every world-th answer, from the rank-th on: one process's share of `score`."""
        answers = sampled(groups)
        return shared(self, part(answers, list(range(rank, len(answers.texts), world))))

    def score(self, groups: list[Group], shares: Sequence[Share] = ()) -> ScoreReport:
        """Set reward (the weighted sum) and rewards (by name) of every rollout; NaN where a reward failed. shares: of all processes,
        where they were asked before."""
        began, answers = time.perf_counter(), sampled(groups)
        known = together(shares, len(answers.texts))
        with self._lock:
            rows, reports = self._rows(answers, lambda scorer: aside(scorer, groups), known)
            self.begun.forget()
        began -= sum(seconds for _, seconds in known.values())
        totals = [total(row, self.weights) for row in rows]
        verdicts = [Verdict(x, row) for x, row in zip(totals, rows, strict=True)]
        return self.written(groups, verdicts, [*reports, *sum_report(totals)], began)

    def texts(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> tuple[list[float], ScoreReport]:
        """The weighted sums for plain texts, NaN where a reward failed."""
        began = time.perf_counter()
        answers = Answers(prompts, texts, lambda: [[] for _ in texts])
        with self._lock:
            rows, reports = self._rows(answers, lambda scorer: [as_number(x) for x in texts_of(scorer, prompts, texts)])
        totals = [total(row, self.weights) for row in rows]
        reports += sum_report(totals)
        totals = [finite(x) for x in totals]
        masked = sum(math.isnan(x) for x in totals)
        return totals, ScoreReport(len(texts), masked, time.perf_counter() - began, reports)

    def _rows(
        self, answers: Answers, ask: Ask, known: Mapping[str, tuple[list[Outcome], float]] | None = None
    ) -> tuple[list[dict[str, Outcome]], list[RewardReport]]:
        """The outcomes of each answer by reward, in the order they were given; asynchronous ones run while others do."""
        n, known = len(answers.texts), known or {}
        begun = {name: self._begin(name, reward, answers) for name, reward in self.rewards.items() if name not in known}
        found: dict[str, list[Outcome]] = {}
        reports = []
        for name, reward in list(self.rewards.items()):
            began, wait = time.perf_counter(), begun.get(name)
            if name in known:
                found[name], seconds = known[name]
                began -= seconds
            elif wait is not None:
                found[name] = wait()
            elif isinstance(reward, Call):
                found[name] = self._sync(name, reward, answers)
            else:
                found[name] = ask(reward)
            reports.append(report_of(name, found[name], time.perf_counter() - began))
            reports[-1].counts = getattr(reward, "spent", {})
        return [{name: outcomes[i] for name, outcomes in found.items()} for i in range(n)], reports

    def _begin(self, name: str, reward: Any, answers: Answers) -> Callable[[], list[Outcome]] | None:
        """Begin a reward that runs beside others, asynchronous or in a process of its own; None for all others."""
        if self._elsewhere is not None and name in self.singles:
            return self._elsewhere(name, answers)
        if name in self.files and len(answers.index) == len(answers.texts) > 0:  # sampled: some may have been begun
            return partial(self._waited, name, self.files[name].wait_for(answers), answers)
        if isinstance(reward, FileReward):
            return partial(self._waited, name, reward.begin(answers, self.timeout, self.workers), answers)
        if isinstance(reward, Call) and reward.asynchronous:
            return begin_async(self.loop, reward, answers, self.timeout, self.workers)
        return None

    def _sync(self, name: str, call: Call, answers: Answers) -> list[Outcome]:
        """What was not graded ahead is graded now."""
        n = len(answers.texts)
        out = self._graded_ahead(name, answers) if call.kind == "one" else {}
        left = [i for i in range(n) if i not in out]
        fresh = sync_outcomes(call, part(answers, left), self.timeout, self.workers)
        out |= dict(zip(left, fresh, strict=True))
        return [out[i] for i in range(n)]

    def _graded_ahead(self, name: str, answers: Answers) -> dict[int, Outcome]:
        """What was begun as answers ended, by answer; one whose text has changed since is graded again."""
        out: dict[int, Outcome] = {}
        begun = [self.begun.take((name, p.id, k)) for p, k in zip(answers.prompts, answers.index, strict=False)]
        for i, item in enumerate(begun):
            got = self.begun.result(item) if item is not None else ("", None)
            if isinstance(got, Failure):
                out[i] = got
            elif item is not None and got[0] == answers.texts[i]:
                out[i] = got[1]
        return out

    def _waited(self, name: str, wait: Callable[[], list[Outcome]], answers: Answers) -> list[Outcome]:
        """What a worker process said; where it cannot read the prompts the reward moves into this process, and is said to."""
        try:
            return wait()
        except Unreadable as error:
            moved: FileReward = self.rewards[name]
            print(
                f"note: the prompts cannot be sent to another process ({error}); {best_effort(name)}", file=sys.stderr
            )
            moved.process.kill()
            self.files.pop(name, None)
            self.rewards[name] = call = _checked(member(moved.file, moved.name))
            if call.asynchronous:
                return begin_async(self.loop, call, answers, self.timeout, self.workers)()
            return sync_outcomes(call, answers, self.timeout, self.workers)


_said: set[str] = set()


def say_once(note: str) -> None:
    """A note on stderr, once per process."""
    if note not in _said:
        _said.add(note)
        print(f"note: {note}", file=sys.stderr)


def best_effort(name: str, kind: str = "reward") -> str:
    """What is said of a reward, or of a judge, that runs in this process."""
    return (
        f"the {kind} {name} runs in the training process, so its time-out is best effort: code that never gives up the "
        "interpreter (a regular expression that backtracks) cannot be stopped; that of a reward of (prompt, text) in a file of yours, --reward file.py:function, can"
    )


def is_scorer(fn: Any) -> bool:
    """A scorer, and not also a function of texts that can be called like any other reward."""
    return hasattr(fn, "score") and not callable(fn)


def _of_one(reward: Any) -> bool:
    """A reward of a file that is asked about one answer at a time."""
    return isinstance(reward, FileReward) and reward.process.kind == "one"


def _checked(fn: Any) -> Call:
    """A reward that could work, and how to call it."""
    check_ready(fn)
    return adapt(fn)


def total(row: dict[str, Any], weights: dict[str, float]) -> float:
    """sum_k w_k r_k; NaN when one that counts failed, or none applies. A reward with weight 0 is logged but never masks."""
    counted = {name: x for name, x in row.items() if weights[name] != 0 and x is not None}
    if any(isinstance(x, Failure) for x in counted.values()):
        return NAN
    if not counted:
        return 0.0 if row and all(weights[name] == 0 for name in row) else NAN
    try:
        return math.fsum(weights[name] * x for name, x in counted.items())
    except OverflowError:
        return math.inf


def sum_report(totals: Sequence[float]) -> list[RewardReport]:
    """Nothing, or why some weighted sums mask their answers although every reward gave a number."""
    beyond = sum(abs(x) > MOST for x in totals)
    told = f"a weighted sum is beyond {MOST:g}, which cannot be averaged; use smaller weights or rewards"
    return [RewardReport("sum", len(totals), beyond, error=told)] if beyond else []
