"""Preference as reward: what a judge of pairs says of an answer beside others to the same prompt.

A judge is asked in batches: judge(prompts, firsts, seconds) gives P(first wins) for each, 1/2 for a tie, NaN where it
cannot say. What it thinks of places (it may like whatever it reads first) is kept out by `compare`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, Protocol

from posttrain.core import rng
from posttrain.core.errors import UserError, unknown
from posttrain.core.registry import scorer
from posttrain.core.terminal import printable
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.runtime.score import say_once
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Verdict, answers_of

Asked = Callable[[Sequence[Prompt], Sequence[str], Sequence[str]], Sequence[float]]


class Prefers(Protocol):
    """Whoever says which of two is better; what else a judge can do is in rewards/scorers/judging.py."""

    def prefer(self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> Sequence[float]: ...


Compares = Asked | Prefers
Match = tuple[Prompt, str, str]
ORDERS = ("both", "drawn", "as given")


def compare(judge: Compares, matches: Sequence[Match], orders: str = "both") -> list[float]:
    """P(first beats second) for each match, in one call of the judge; an answer beside itself is a tie, and not asked.

    both: p = (P(a, b) + 1 - P(b, a)) / 2, two questions per match: a liking for the first place cancels.
    drawn: one question, the place drawn by the match's identity: the liking is noise of mean 0. as given: it stays.
    """
    if orders not in ORDERS:
        raise unknown("way to order a pair", orders, ORDERS)
    real = [m for m in matches if m[1] != m[2]]
    turned = [orders == "drawn" and rng.python("order", p.id, a, b).random() < 0.5 for p, a, b in real]
    asked = [(p, b, a) if turn else (p, a, b) for (p, a, b), turn in zip(real, turned, strict=True)]
    asked += [(p, b, a) for p, a, b in real] if orders == "both" else []
    said = [float(x) for x in asking(judge)(*map(list, zip(*asked, strict=True)))] if asked else []
    if len(said) != len(asked) or any(not 0 <= x <= 1 for x in said if x == x):
        raise UserError(
            f"a judge gives one P(first wins) between 0 and 1 for each of {len(asked)} pairs, got {said[:4]}"
        )
    first = [1 - x if turn else x for x, turn in zip(said, turned, strict=False)]
    if orders == "both":
        first = [(x + 1 - y) / 2 for x, y in zip(first, said[len(real) :], strict=True)]
    found = iter(first)
    return [0.5 if a == b else next(found) for _, a, b in matches]


def asking(judge: Compares) -> Asked:
    """A judge as the function of pairs that it is, or has."""
    return judge.prefer if hasattr(judge, "prefer") else judge


def decided(judge: Compares, margin: float = 0.0) -> Asked:
    """A judge that says who wins, not how surely: 1, 0, or 1/2 where P is within `margin` of 1/2."""

    def say(x: float) -> float:
        return 0.5 if abs(x - 0.5) <= margin else float(x > 0.5) if x == x else NAN

    return lambda prompts, a, b: [say(x) for x in asking(judge)(prompts, a, b)]


def by_score(texts: Callable[[Sequence[Prompt], Sequence[str]], Sequence[float]], k: float = 1.0) -> Asked:
    """A scalar reward as a judge (Bradley-Terry): P(a wins) = sigmoid(k (r_a - r_b)); each answer is scored once."""

    def judge(prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> list[float]:
        met = {(p.id, t): p for p, pair in zip(prompts, zip(a, b, strict=True), strict=True) for t in pair}
        worth = dict(zip(met, texts(list(met.values()), [t for _, t in met]), strict=True))
        gaps = [worth[p.id, x] - worth[p.id, y] for p, x, y in zip(prompts, a, b, strict=True)]
        return [1 / (1 + math.exp(-max(min(k * g, 50.0), -50.0))) if g == g else NAN for g in gaps]

    return judge


def told_once(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """ask(read, *args): read(fn(*args)); where either fails the judge could not say (NaN), and why is told once."""
    failed: list[str] = []

    def ask(read: Callable[[Any], Any], *args: Any, **more: Any) -> Any:
        try:
            return read(fn(*args, **more))
        except Exception as error:  # a failed judge is data
            if not failed:  # the next one may fail in other words
                failed.append(printable(f"{type(error).__name__}: {error}"[:300], one_line=True))
                say_once(f"the judge {name} failed, and what it cannot say is masked: {failed[0]}")
            return NAN

    return ask


@scorer(title="Win rate", paper="arXiv:2401.04056")
class WinRate(BaseScorer):
    """Win rate: the share of others that an answer beats, R_i = mean_j P(y_i > y_j).

    others: its siblings (None), or texts for each group from a function of the groups (a pool, an opponent's answers).
    Comparisons the judge could not make do not count; an answer with no other is as good as itself (1/2). One about which the judge
    could say nothing is masked, although it ties with its equals. `calls` counts the questions, those of each step are its metric `judge_calls`.
    """

    reported, by_name = ("win_rate",), {"judge": "judge"}

    def __init__(
        self, judge: Compares, others: Callable[[list[Group]], list[list[str]]] | None = None, orders: str = "both"
    ) -> None:
        self.judge, self.others, self.orders, self.calls, self._told = judge, others, orders, 0, 0

    def counts(self) -> dict[str, float]:
        since, self._told = self.calls - self._told, self.calls
        return {"judge_calls": float(since)}

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        won: dict[int, list[float]] = {id(r): [] for g in groups for r in g.rollouts}
        pairs = self.siblings(groups) if self.others is None else self.against(groups, self.others(groups))
        matches = [(r.prompt, r.text, text) for r, text, _ in pairs]
        self.calls += sum(a != b for _, a, b in matches) * (2 if self.orders == "both" else 1)
        asked: dict[int, list[float]] = {name: [] for name in won}
        for (r, text, other), p in zip(pairs, compare(self.judge, matches, self.orders), strict=True):
            for one, x in ((r, p), (other, 1 - p)):
                if one is not None:
                    won[id(one)].append(x)
                    asked[id(one)] += [x] if r.text != text else []
        found = [NAN if mean(asked[id(r)]) != mean(asked[id(r)]) else mean(won[id(r)]) for r in answers_of(groups)]
        return [Verdict(x, {"win_rate": x}) for x in found]

    @staticmethod
    def siblings(groups: list[Group]) -> list[tuple[Rollout, str, Rollout | None]]:
        """Every two of a group meet once: what one wins the other loses."""
        return [(a, b.text, b) for g in groups for a, b in combinations(g.rollouts, 2)]

    @staticmethod
    def against(groups: list[Group], texts: list[list[str]]) -> list[tuple[Rollout, str, Rollout | None]]:
        return [(r, t, None) for g, others in zip(groups, texts, strict=True) for r in g.rollouts for t in others]


def mean(xs: Sequence[float]) -> float:
    """Of those that are numbers; 1/2 of none, NaN if all failed."""
    good = [x for x in xs if x == x]
    return math.fsum(good) / len(good) if good else (NAN if xs else 0.5)
