"""A judge that is asked in words and answers in words, whoever speaks: a model that is served, or one that is here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt
from posttrain.rewards.runtime.scorer import (
    NAN,
    BaseScorer,
    Outcome,
    ScoreReport,
    Verdict,
    answers_of,
    finite,
    report_of,
)
from posttrain.rewards.runtime.timeout_pool import Failure
from posttrain.rewards.scorers import wording
from posttrain.rewards.scorers.judging import Case, Criterion, Judging, drawn_order
from posttrain.rewards.scorers.pairwise import WinRate

MODES = ("points", "pairs")
Read = Callable[[str], Any]  # a judge's words -> what they say, or the Failure


class WordJudge(Judging, BaseScorer):
    """The four questions in words. A subclass gives `said`: what is said to each question under a system message.

    As a reward: points from low to high as a number from 0 to 1, or in pairs the share of its siblings that an answer beats.
    """

    mode, called = "points", "judge"
    again = 0  # times that an answer which cannot be read is asked for anew
    last = ""  # why the last question failed

    def said(self, questions: Sequence[str], system: str, attempt: int = 0) -> list[str | Failure]:
        raise NotImplementedError(f"{type(self).__name__} must say something")

    # ---- the four questions

    def points(
        self, prompts: Sequence[Prompt], texts: Sequence[str], criterion: Criterion | None = None
    ) -> list[float]:
        return [x if isinstance(x, float) else NAN for x in self.graded(prompts, texts, criterion)]

    def graded(
        self, prompts: Sequence[Prompt], texts: Sequence[str], criterion: Criterion | None = None
    ) -> list[Outcome]:
        """The points of each answer, or why there are none."""
        c = criterion or self.criterion
        asked = [wording.asked(p, c, wording.block("answer", t)) for p, t in zip(prompts, texts, strict=True)]
        return self.answered(asked, wording.system(wording.POINTS, c), lambda said, i: wording.read_score(said, c))

    def prefer(
        self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str], criterion: Criterion | None = None
    ) -> list[float]:
        c = criterion or self.criterion
        both = [wording.block("answer_a", x) + wording.block("answer_b", y) for x, y in zip(a, b, strict=True)]
        asked = [wording.asked(p, c, two) for p, two in zip(prompts, both, strict=True)]
        found = self.answered(asked, wording.system(wording.PAIRS, c), lambda said, i: wording.read_winner(said))
        return [x if isinstance(x, float) else NAN for x in found]

    def together(self, cases: Sequence[Case], criterion: Criterion | None = None) -> list[list[float]]:
        c = criterion or self.criterion
        orders, found = self.several(cases, c, wording.TOGETHER, lambda said, n: wording.read_scores(said, n, c))
        return [
            [NAN] * len(order) if isinstance(told, Failure) else [told[order.index(i)] for i in range(len(order))]
            for order, told in zip(orders, found, strict=True)
        ]

    def rank(self, cases: Sequence[Case], criterion: Criterion | None = None) -> list[tuple[int, ...]]:
        orders, found = self.several(cases, criterion or self.criterion, wording.RANKING, wording.read_ranking)
        return [
            () if isinstance(told, Failure) else tuple(order[place] for place in told)
            for order, told in zip(orders, found, strict=True)
        ]

    def several(
        self, cases: Sequence[Case], c: Criterion, how: str, read: Callable[[str, int], Any]
    ) -> tuple[list[list[int]], list[Any]]:
        """The orders in which the answers of each case were shown, and what was said of them in these."""
        orders = [drawn_order(p, texts, c.aspect) for p, texts in cases]
        asked = [
            wording.asked(p, c, wording.numbered([texts[i] for i in order]))
            for (p, texts), order in zip(cases, orders, strict=True)
        ]
        return orders, self.answered(asked, wording.system(how, c), lambda said, i: read(said, len(orders[i])))

    def answered(self, asked: Sequence[str], system: str, read: Callable[[str, int], Any]) -> list[Any]:
        """What was said to each question, read; what cannot be read is asked for `again`."""
        self.calls += len(asked)
        found: list[Any] = [Failure("raised", "it was not asked")] * len(asked)
        left = list(range(len(asked)))
        for attempt in range(self.again + 1):
            said = self.said([asked[i] for i in left], system, attempt) if left else []
            for i, words in zip(left, said, strict=True):
                found[i] = read(words, i) if isinstance(words, str) else words
            left = [i for i in left if isinstance(found[i], Failure)]
        self.last = next((x.error for x in found if isinstance(x, Failure)), "")
        return found

    # ---- as a reward

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        """Points for each answer; in pairs, its share of wins over its siblings."""
        if self.mode == "pairs":
            return self.compared(groups)
        rollouts = answers_of(groups)
        found = self.shares([r.prompt for r in rollouts], [r.text for r in rollouts])
        return [Verdict(finite(x), {self.called: x}) for x in found]

    def shares(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Outcome]:
        """(points - low) / (high - low) of each answer, or why there are none."""
        low, high = self.criterion.low, self.criterion.high
        return [(x - low) / (high - low) if isinstance(x, float) else x for x in self.graded(prompts, texts)]

    def compared(self, groups: list[Group]) -> list[Verdict]:
        if groups and all(len(g.rollouts) < 2 for g in groups):
            raise UserError(
                "judge(mode='pairs') compares answers to one prompt; ask for two or more: --num-generations 2"
            )
        won = [finite(v.reward) for v in WinRate(self.prefer).verdicts(groups)]
        why = Failure("raised", self.last or "no comparison could be made")
        return [Verdict(x, {self.called: x if x == x else why}) for x in won]

    def texts(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> tuple[list[float], ScoreReport]:
        """Points of plain texts."""
        if self.mode == "pairs":
            raise UserError("judge(mode='pairs') compares answers to the same prompt; it cannot score a text alone")
        found = self.shares(prompts, texts)
        report = report_of(self.called, found, 0.0)
        return [finite(x) for x in found], ScoreReport(len(found), report.failed, 0.0, [report])

    def counts(self) -> dict[str, float]:
        return {"judge_calls": float(self.taken())}
