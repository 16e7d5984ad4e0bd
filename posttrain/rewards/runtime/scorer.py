"""Scorers: they compute the rewards of answers, in training and in evaluation alike.

A scorer sets the reward of each answer. If it fails, the answer is masked and counted, never taken as 0, and the run goes
on. `BaseScorer` does the writing, the masking and the counting; a subclass only computes verdicts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.runtime.outcome import NAN as NAN
from posttrain.rewards.runtime.outcome import Failure
from posttrain.rewards.runtime.outcome import Outcome as Outcome
from posttrain.rewards.runtime.outcome import as_number as as_number
from posttrain.rewards.runtime.outcome import finite as finite


@dataclass
class RewardReport:
    """Statistics of one reward: its mean over what could be scored, failures with reasons, and time."""

    name: str
    n: int = 0
    failed: int = 0  # raised, late or not a number
    late: int = 0  # of those, the ones that ran out of time
    skipped: int = 0  # a TRL reward said None: it does not apply here
    mean: float = NAN
    seconds: float = 0.0
    error: str = ""  # the first failure
    where: str = ""  # the last line of its traceback
    counts: dict[str, float] = field(default_factory=dict)  # what it cost: requests, tokens

    def joined(self, other: RewardReport) -> RewardReport:
        """Of the same reward, asked twice."""
        sizes = [r.n - r.failed - r.skipped for r in (self, other)]
        total = sum(r.mean * size for r, size in zip((self, other), sizes, strict=True) if size)
        counts = {k: self.counts.get(k, 0.0) + other.counts.get(k, 0.0) for k in (*self.counts, *other.counts)}
        sums = {k: getattr(self, k) + getattr(other, k) for k in ("n", "failed", "late", "skipped", "seconds")}
        first = self if self.failed else other
        mean = total / sum(sizes) if sum(sizes) else NAN
        return RewardReport(self.name, **sums, mean=mean, error=first.error, where=first.where, counts=counts)


@dataclass
class ScoreReport:
    """The report of one scoring."""

    n: int = 0
    masked: int = 0
    seconds: float = 0.0
    rewards: list[RewardReport] = field(default_factory=list)

    def __add__(self, other: ScoreReport) -> ScoreReport:
        """Of two scorings of one step, as if it had been one."""
        names = dict.fromkeys(r.name for r in (*self.rewards, *other.rewards))
        each = [[r for r in (*self.rewards, *other.rewards) if r.name == name] for name in names]
        rewards = [reduce(RewardReport.joined, some) for some in each]
        return ScoreReport(self.n + other.n, self.masked + other.masked, self.seconds + other.seconds, rewards)

    @property
    def all_failed(self) -> list[str]:
        """Rewards that failed on every answer: a mistake in the reward rather than in the answers."""
        return [r.name for r in self.rewards if r.n and r.failed == r.n]

    @property
    def why(self) -> str:
        """The first failure in a sentence; empty when nothing failed."""
        bad = [r for r in self.rewards if r.failed]
        return "; ".join(
            f"{r.name} failed on {r.failed} of {r.n} ({r.error}{r.where and f' at {r.where}'})" for r in bad
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a log or a page."""
        return asdict(self)

    def metrics(self) -> dict[str, float]:
        """The numbers that are logged per step."""
        out = {"reward/masked": float(self.masked)}
        for r in self.rewards:
            out |= {f"reward/{r.name}/mean": r.mean, f"reward/{r.name}/failed": float(r.failed)}
            out |= {f"reward/{r.name}/{key}": value for key, value in r.counts.items()}
        return out

    def __str__(self) -> str:
        return f"{self.n} rollouts scored, {self.masked} masked" + (f"; {self.why}" if self.why else "")


@runtime_checkable
class Scorer(Protocol):
    """Sets `reward` (NaN where it failed) and `rewards` (by component) of every answer; some also set `reward_T`."""

    def score(self, groups: list[Group]) -> ScoreReport: ...


@runtime_checkable
class TextScorer(Scorer, Protocol):
    """A scorer that can also read plain texts: one that needs neither an answer's siblings nor its tokens."""

    def texts(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> tuple[list[float], ScoreReport]: ...


@dataclass
class Verdict:
    """The result for one answer. A reward that is not finite masks it; None keeps that of the inner scorer."""

    reward: float | None = None
    parts: Mapping[str, Outcome] = field(default_factory=dict)  # by component
    reward_T: Tensor | None = None  # token by token


class BaseScorer:
    """A subclass gives `verdicts`, one Verdict per answer in order; the rest is here.

    `inner` scores first where a scorer adds to another's outcome. `reported` names the components that are counted.
    `by_name` says which parameters can be named on the command line, and as what: a "judge", a "scorer", or "texts".
    """

    inner: Any = None
    reported: tuple[str, ...] = ()
    by_name: ClassVar[Mapping[str, str]] = {}
    spent: dict[str, float] = {}  # what the last scoring cost

    def verdicts(self, groups: list[Group]) -> Sequence[Verdict]:
        raise NotImplementedError(f"{type(self).__name__} must say what answers are worth")

    def counts(self) -> dict[str, float]:
        """What scoring has cost since this was last asked (requests, tokens), for the metrics of a step."""
        return {}

    def score(self, groups: list[Group]) -> ScoreReport:
        """Write the verdicts into the answers and return a report."""
        began = time.perf_counter()
        first = self.inner.score(groups).rewards if self.inner is not None else []
        verdicts = self.verdicts(groups)
        seconds = time.perf_counter() - began
        own = [report_of(name, [v.parts.get(name) for v in verdicts], seconds) for name in self.reported]
        self.spent = self.counts()
        if own:
            own[0].counts = self.spent
        return self.written(groups, verdicts, [*first, *own], began)

    def written(
        self, groups: list[Group], verdicts: Sequence[Verdict], reports: list[RewardReport], began: float
    ) -> ScoreReport:
        """The verdicts in the answers: what is not a finite number is NaN, which masks."""
        rollouts = answers_of(groups)
        for r, v in zip(rollouts, verdicts, strict=True):
            if v.parts:
                known = r.rewards if self.inner is not None else {}
                r.rewards = {**known, **{name: finite(x) for name, x in v.parts.items()}}
            r.reward = r.reward if v.reward is None else finite(v.reward)
            if v.reward_T is not None:
                r.set_stream("reward", v.reward_T)
        return ScoreReport(len(rollouts), sum(r.failed for r in rollouts), time.perf_counter() - began, reports)


class TextBase(BaseScorer):
    """The base of scorers that read a prompt and a text and nothing else: subclasses give `values`."""

    name = "text"

    def values(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        raise NotImplementedError(f"{type(self).__name__} must say what texts are worth")

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts = answers_of(groups)
        found = self.values([r.prompt for r in rollouts], [r.text for r in rollouts])
        return [Verdict(x, {self.name: as_number(x)}) for x in found]

    def texts(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> tuple[list[float], ScoreReport]:
        began = time.perf_counter()
        found = [as_number(x) for x in self.values(prompts, texts)]
        report = report_of(self.name, found, time.perf_counter() - began)
        return [finite(x) for x in found], ScoreReport(len(found), report.failed, report.seconds, [report])


class Prescored(BaseScorer):
    """For answers that come with their rewards (demonstrations, pairs, logs): nothing to score."""

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        return [Verdict() for _ in answers_of(groups)]


class Unpaid(Prescored):
    """For methods that read no reward (a teacher says how good each token is): every answer counts, and is worth 0."""

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        return [Verdict(0.0 if r.reward is None else None) for r in answers_of(groups)]


def answers_of(groups: Sequence[Group]) -> list[Rollout]:
    """All answers, group by group."""
    return [r for g in groups for r in g.rollouts]


def texts_of(scorer: Scorer, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """What plain texts are worth; a sentence where a scorer needs more than the text."""
    return texts_told(scorer, prompts, texts)[0]


def texts_told(scorer: Scorer, prompts: Sequence[Prompt], texts: Sequence[str]) -> tuple[list[float], ScoreReport]:
    """The same, and how it went."""
    if not isinstance(scorer, TextScorer):
        name = type(scorer).__name__
        raise UserError(f"{name} judges answers beside their siblings or token by token; it cannot score a text alone")
    return scorer.texts(prompts, texts)


def aside(scorer: Scorer, groups: list[Group]) -> list[Outcome]:
    """What a scorer says of each answer, or why it failed; reward and components of the answers stay as they were."""
    rollouts = answers_of(groups)
    before = [(r.reward, r.rewards, r.stream("reward")) for r in rollouts]
    report = scorer.score(groups)
    bad = next((r for r in report.rewards if r.failed), RewardReport(""))
    failure = Failure("late" if bad.late else "raised", bad.error or "no reward was given", bad.where)
    found: list[Outcome] = [failure if r.reward is None or r.failed else float(r.reward) for r in rollouts]
    for r, (reward, rewards, reward_T) in zip(rollouts, before, strict=True):
        r.reward, r.rewards = reward, rewards
        r.set_stream("reward", reward_T)
    return found


def report_of(name: str, outcomes: Sequence[Outcome], seconds: float) -> RewardReport:
    """How one reward went; a number that is not finite failed."""
    told = [as_number(x) if isinstance(x, float) else x for x in outcomes]
    good = [x for x in told if isinstance(x, float)]
    bad = [x for x in told if isinstance(x, Failure)]
    first = bad[0] if bad else Failure("", "")
    mean = math.fsum(good) / len(good) if good else NAN
    late, skipped = sum(b.kind == "late" for b in bad), sum(x is None for x in told)
    return RewardReport(name, len(told), len(bad), late, skipped, mean, seconds, first.error, first.where)
