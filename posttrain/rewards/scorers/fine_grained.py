"""Fine-grained rewards (arXiv:2306.01693): several reward models, each judging segments of its own size as they end."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from posttrain.core.credit import Span, spans_to_tokens, split_steps, token_ends
from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment
from posttrain.core.registry import scorer, split_sum
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.runtime.scorer import (
    NAN,
    BaseScorer,
    Outcome,
    TextScorer,
    Verdict,
    answers_of,
    texts_of,
)
from posttrain.rewards.runtime.timeout_pool import caught
from posttrain.rewards.scorers.spec import function_of, named

Judge = Callable[[Prompt, str, Span], float]  # the reward of a segment of a text


@dataclass(frozen=True)
class SegmentModel:
    """One category: how an answer is split (a level of process.LEVELS, or a function), who judges, and what it weighs."""

    name: str
    level: str | Callable[[str], list[Span]]
    judge: Judge
    weight: float = 1.0

    def spans(self, text: str) -> list[Span]:
        return split_steps(text, self.level) if isinstance(self.level, str) else self.level(text)


def of_segment(rule: Callable[[Prompt, str], float]) -> Judge:
    """A rule for texts as a judge of segments: it reads the segment alone."""
    return lambda prompt, text, span: float(rule(prompt, text[span[0] : span[1]]))


def of_change(score: Callable[[Prompt, str], float]) -> Judge:
    """By how much a segment raised the score of the answer so far; for a score that is bad, give it with a minus."""
    return lambda prompt, text, span: float(score(prompt, text[: span[1]]) - score(prompt, text[: span[0]]))


@scorer(title="Fine-grained rewards", paper="arXiv:2306.01693")
class FineGrained(BaseScorer):
    """Fine-grained rewards: each model judges segments of its own size as they end.

    r_t = sum_k sum_j [t ends segment j of model k] w_k R_k(x, y, j), in reward_T
    Models of whole answers (level "answer") give the outcome, the others dense credit; `rewards` has each one's sum. An
    answer of which a model fails is masked and counted.
    """

    def __init__(self, models: Sequence[SegmentModel], decode: Callable[[Tensor], str]) -> None:
        if not models:
            raise UserError("nothing to judge with; give at least one SegmentModel")
        self.models, self.decode = list(models), decode
        self.reported = tuple(m.name for m in self.models)

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        return [self.one(r) for r in answers_of(groups)]

    def one(self, r: Rollout) -> Verdict:
        """Every model on one answer."""
        ends = token_ends(self.decode, r.actions, r.turns[-1].observation.lead)
        reward, reward_T = 0.0, spans_to_tokens([], [], ends, r.mask_T)
        found: dict[str, Outcome] = {}
        for m in self.models:
            try:
                spans = m.spans(r.text)
                worths = [m.weight * m.judge(r.prompt, r.text, span) for span in spans]
            except Exception as error:  # a failed reward is data
                found[m.name], reward = caught(error), NAN
                continue
            total = found[m.name] = math.fsum(worths)
            if m.level == "answer" or not math.isfinite(total):
                reward += total
            else:
                reward_T = reward_T + spans_to_tokens(spans, worths, ends, r.mask_T)
        return Verdict(reward, found, reward_T)


def judge_of(rule: str, env: Environment) -> Judge:
    """A function of (prompt, text, start, end) sees the whole answer and where the segment is; a scorer (`runs/NAME`, a folder)
    scores the answer so far, and the segment earns the change; a rule or a function of (prompt, text) sees the segment alone."""
    file, _, name = rule.rpartition(":")
    if file.endswith(".py"):
        fn = function_of(file, name)
        if len(inspect.signature(fn).parameters) == 4:
            return lambda prompt, text, span: float(fn(prompt, text, *span))
    found = named(rule, env)[1]
    if isinstance(found, TextScorer):
        return of_change(lambda prompt, text: texts_of(found, [prompt], [text])[0])
    return of_segment(found)


def models_of(spec: str, env: Environment) -> list[SegmentModel]:
    """`"0.3*phrase:repetition + answer:task"` as models: weight * level : rule."""
    made = []
    for piece in split_sum(spec):
        weight, star, rest = piece.rpartition("*")
        level, colon, rule = rest.strip().partition(":")
        try:
            number = float(weight) if star else 1.0
        except ValueError:
            number = NAN
        if not colon or math.isnan(number):
            raise UserError(f"cannot read {piece!r}; write it like '0.3*sentence:repetition + answer:task'")
        split_steps("", level)  # refuses a level that does not exist
        made.append(SegmentModel(f"{level}-{rule}", level, judge_of(rule, env), number))
    return made
