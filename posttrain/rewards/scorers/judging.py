"""What a judge is. Whoever judges answers the same four questions, in batches, so that one may stand in for another everywhere:

    points(prompts, texts, criterion)      points for each answer, shown alone; NaN where the judge could not say
    together(cases, criterion)             points for all answers to a prompt, shown together: one question for each prompt
    prefer(prompts, a, b, criterion)       P(a is better) in the order given; `pairwise.compare` asks in both
    rank(cases, criterion)                 the places of the answers to a prompt, best first; () where the judge could not say

A judge is a function of yours, a reward, a model that is served, one in a folder, the policy itself, or an oracle of known faults.
What a judge cannot do by itself follows from what it can. `calls` counts the questions, however they were answered.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.rewards.runtime.score import say_once
from posttrain.rewards.runtime.scorer import NAN, Scorer, ScoreReport, texts_told
from posttrain.rewards.scorers.pairwise import by_score, compare, mean, told_once

RUBRIC = "Is it right, complete, clear, and no longer than it needs to be?"
Case = tuple[Prompt, Sequence[str]]  # a prompt and the answers to it that are judged


@dataclass(frozen=True)
class Example:
    """A ranking that a judge is shown before it judges: answers to a prompt, best first."""

    prompt: Prompt
    ranked: tuple[str, ...]


@dataclass(frozen=True)
class Criterion:
    """What a judge is asked: a rubric in words and its short name, the points there are, what it may see besides the answers."""

    rubric: str = RUBRIC
    aspect: str = ""
    low: float = 0.0
    high: float = 10.0
    reference: bool = False  # the prompt's gold answer
    examples: tuple[Example, ...] = ()


def drawn_order(prompt: Prompt, texts: Sequence[str], *identity: object) -> list[int]:
    """The order in which answers are shown together, drawn by what they are: no answer has a place of its own."""
    order = list(range(len(texts)))
    rng.python("shown together", prompt.id, *identity, *texts).shuffle(order)
    return order


def best_first(points: Sequence[float], *identity: object) -> tuple[int, ...]:
    """The places of points, best first, equals in an order that is drawn; () where a judge could not say."""
    if any(x != x for x in points):
        return ()
    drawn = [rng.python("equals", *identity, i).random() for i in range(len(points))]
    return tuple(sorted(range(len(points)), key=lambda i: (-points[i], drawn[i])))


class Judging:
    """The base of judges: one that gives points has all four questions, one that compares gives `prefer` and `compares = True`."""

    criterion = Criterion()
    compares = False  # it knows pairs alone
    learns = True  # examples change what it says
    k = 1.0  # P(a is better) = sigmoid(k (points of a - points of b))
    calls = 0
    _told = 0

    def points(
        self, prompts: Sequence[Prompt], texts: Sequence[str], criterion: Criterion | None = None
    ) -> list[float]:
        raise UserError(
            f"{self.named} compares answers with each other and gives no points to one; give a judge that does: a function "
            "f(prompt, text), judge(url='http://...') or a reward model"
        )

    def together(self, cases: Sequence[Case], criterion: Criterion | None = None) -> list[list[float]]:
        """By itself: each answer's own points; of a judge of pairs the share of the others that it beats, from low to high."""
        if not self.compares:
            flat = iter(self.points([p for p, texts in cases for _ in texts], [t for _, ts in cases for t in ts], criterion))  # fmt: skip
            return [[next(flat) for _ in texts] for _, texts in cases]
        asked = criterion or self.criterion
        rates = self.win_rates(cases, criterion)
        return [[asked.low + (asked.high - asked.low) * x for x in row] for row in rates]

    def prefer(
        self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str], criterion: Criterion | None = None
    ) -> list[float]:
        return list(by_score(lambda ps, ts: self.points(ps, ts, criterion), self.k)(prompts, a, b))

    def rank(self, cases: Sequence[Case], criterion: Criterion | None = None) -> list[tuple[int, ...]]:
        found = self.together(cases, criterion)
        return [best_first(row, p.id, *texts) for row, (p, texts) in zip(found, cases, strict=True)]

    def win_rates(self, cases: Sequence[Case], criterion: Criterion | None = None) -> list[list[float]]:
        """The share of the others that each answer beats, every two compared in both orders."""
        met = [(i, a, b) for i, (_, texts) in enumerate(cases) for a, b in combinations(range(len(texts)), 2)]
        matches = [(cases[i][0], cases[i][1][a], cases[i][1][b]) for i, a, b in met]
        won: list[list[list[float]]] = [[[] for _ in texts] for _, texts in cases]
        said = compare(lambda prompts, a, b: self.prefer(prompts, a, b, criterion), matches)
        for (i, a, b), p in zip(met, said, strict=True):
            won[i][a].append(p)
            won[i][b].append(1 - p)
        return [[mean(row) for row in rows] for rows in won]

    @property
    def named(self) -> str:
        return str(getattr(self, "called", "") or "this judge")

    def taken(self) -> int:
        """Questions since this was last asked."""
        since, self._told = self.calls - self._told, self.calls
        return since


class ScoreJudge(Judging):
    """Any reward as a judge: its own numbers are the points, whatever the criterion asks; P(a wins) = sigmoid(k (r_a - r_b))."""

    learns = False

    def __init__(self, scorer: Scorer, k: float = 1.0) -> None:
        self.scorer, self.k, self.called = scorer, k, type(scorer).__name__

    def points(
        self, prompts: Sequence[Prompt], texts: Sequence[str], criterion: Criterion | None = None
    ) -> list[float]:
        self.calls += len(texts)
        found, report = texts_told(self.scorer, prompts, texts) if len(texts) else ([], ScoreReport())
        if report.why:
            say_once(f"what cannot be scored is masked: {report.why}")
        return found


# ---- a function of the user's

FORMS = {("a", "b"): "pair", ("texts",): "texts", ("text", "aspect"): "text"}
_TAKES = ("aspect", "rubric", "reference", "demonstrations")


def form_of(fn: Any) -> str:
    """Which kind of judge a function is by the names of its parameters: pair, texts, text; "" where it is none."""
    try:
        first, *names = inspect.signature(fn).parameters if callable(fn) else [""]
    except (ValueError, TypeError):  # a builtin that does not say what it takes
        return ""
    if first == "prompts":  # a reward of many answers, to many prompts
        return ""
    return next((form for start, form in FORMS.items() if tuple(names[: len(start)]) == start), "")


def is_judge(fn: Any) -> bool:
    """A function that judges as a user writes one, or any other judge."""
    return isinstance(fn, Judging) or bool(form_of(fn))


class FunctionJudge(Judging):
    """A function of the user's as a judge, known by its parameters:

    f(prompt, a, b)             P(a is better), 1/2 for a tie
    f(prompt, texts)            points for all answers to a prompt, a list as long
    f(prompt, text, aspect)     points for one, by the name of the aspect that is asked about
    Each may take aspect, rubric, reference (the gold answer, where it may be seen) and demonstrations ([{"prompt": ..., "ranked": [...]}])
    besides. Where it fails it could not say, and why is told once.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.form, self.called = form_of(fn), getattr(fn, "__name__", "a judge")
        self.compares = self.form == "pair"
        self.takes = [name for name in _TAKES if name in inspect.signature(fn).parameters]
        self.learns = "demonstrations" in self.takes
        self.ask = told_once(fn, self.called)

    def points(
        self, prompts: Sequence[Prompt], texts: Sequence[str], criterion: Criterion | None = None
    ) -> list[float]:
        if self.form == "pair":
            return super().points(prompts, texts, criterion)
        if self.form == "texts":
            return [row[0] for row in self.together([(p, [t]) for p, t in zip(prompts, texts, strict=True)], criterion)]
        self.calls += len(texts)
        return [self.ask(number, p, t, **self.besides(p, criterion)) for p, t in zip(prompts, texts, strict=True)]

    def together(self, cases: Sequence[Case], criterion: Criterion | None = None) -> list[list[float]]:
        if self.form != "texts":
            return super().together(cases, criterion)
        self.calls += len(cases)
        said = [self.ask(read_numbers(len(ts)), p, list(ts), **self.besides(p, criterion)) for p, ts in cases]
        return [x if isinstance(x, list) else [NAN] * len(ts) for x, (_, ts) in zip(said, cases, strict=True)]

    def prefer(
        self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str], criterion: Criterion | None = None
    ) -> list[float]:
        if self.form != "pair":
            return super().prefer(prompts, a, b, criterion)
        self.calls += len(a)
        return [self.ask(number, p, x, y, **self.besides(p, criterion)) for p, x, y in zip(prompts, a, b, strict=True)]

    def besides(self, prompt: Prompt, criterion: Criterion | None) -> dict[str, Any]:
        asked = criterion or self.criterion
        every = {
            "aspect": asked.aspect,
            "rubric": asked.rubric,
            "reference": prompt.answer if asked.reference else None,
            "demonstrations": [{"prompt": e.prompt, "ranked": list(e.ranked)} for e in asked.examples],
        }
        return {name: every[name] for name in self.takes}


def number(found: Any) -> float:
    """What a function said, as a float; NaN where it could not say. ValueError where it is no number, or an infinite one."""
    said = NAN if found is None else float(found)
    if math.isinf(said):
        raise ValueError(f"a judge gives finite numbers, got {said}")
    return said


def read_numbers(n: int) -> Callable[[Any], list[float]]:
    """What a function said of n answers, as floats."""

    def read(found: Any) -> list[float]:
        out = [number(x) for x in found]
        if len(out) != n:
            raise ValueError(f"a judge of {n} answers gives a list of as many finite numbers, got {found!r:.80}")
        return out

    return read
