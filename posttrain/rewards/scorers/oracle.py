"""A judge of known faults: it knows what answers are truly worth, and errs in ways that can be set one by one.

For tests and experiments: what a method makes of a judge's noise can be measured only where the noise is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.registry import scorer
from posttrain.core.types import Prompt
from posttrain.rewards.runtime.scorer import TextBase
from posttrain.rewards.scorers.judging import Case, Criterion, Example, Judging, best_first

Texts = Callable[[Sequence[Prompt], Sequence[str]], Sequence[float]]


@scorer(title="Oracle")
class Oracle(Judging, TextBase):
    """Oracle: a judge that sees v = U + longer words / 10 + noise z, U the true worth, z a standard normal of the answer and the aspect.

    oracle(utility='mine.py:worth', noise=0.5, flip=0.1, seed=1)
    points     low + (high - low) sigmoid(v + shared b), rounded to whole points; b a standard normal of the question: answers that
               are shown together have the same one, answers that are shown one by one have each their own
    pairs      P(a wins) = flip + (1 - 2 flip) sigmoid((v_a - v_b + first) / temperature): it likes the first place by `first`;
               decided: it says who wins, drawn from P by the question; else it says P itself
    rankings   by v; then each two that are neighbours, from the best on, change places with the chance `flip`
    taught: with perfect examples the noise is (1 - taught) of what it is, with wrong ones all of it; without examples too.
    """

    by_name = {"utility": "texts"}
    name, called, reported = "oracle", "oracle", ("oracle",)

    def __init__(
        self, utility: Texts, noise: float = 0.0, flip: float = 0.0, longer: float = 0.0, first: float = 0.0,
        shared: float = 0.0, temperature: float = 1.0, decided: bool = False, taught: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        if not 0 <= flip <= 0.5 or noise < 0 or shared < 0 or temperature <= 0 or not 0 <= taught <= 1:
            raise UserError(
                f"got flip={flip}, noise={noise}, shared={shared}, temperature={temperature}, taught={taught}; flip is from 0 to 0.5, "
                "taught from 0 to 1, the temperature above 0, the others at least 0"
            )
        self.utility, self.noise, self.flip, self.longer, self.first = utility, noise, flip, longer, first
        self.shared, self.temperature, self.decided, self.taught, self.seed = shared, temperature, decided, taught, seed

    # ---- what it sees

    def values(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """As a reward: what it sees of each answer."""
        return self.seen(prompts, texts, self.criterion)

    def seen(self, prompts: Sequence[Prompt], texts: Sequence[str], c: Criterion) -> list[float]:
        worth = self.utility(prompts, texts) if len(texts) else []
        noise = self.noise * (1 - self.taught * self.quality(c.examples))
        return [
            u + self.longer * len(t.split()) / 10 + noise * self.normal("answer", c.aspect, p.id, t)
            for p, t, u in zip(prompts, texts, worth, strict=True)
        ]

    def normal(self, *identity: object) -> float:
        return rng.python("oracle", self.seed, *identity).gauss(0.0, 1.0)

    def quality(self, examples: Sequence[Example]) -> float:
        """How well examples are ordered: 1 if every pair of theirs is right, 0 if half of them or fewer are, or there are none."""
        rights = [share for e in examples if (share := self.right(e)) is not None]
        return max(0.0, 2 * fmean(rights) - 1) if rights else 0.0

    def right(self, example: Example) -> float | None:
        worth = self.utility([example.prompt] * len(example.ranked), list(example.ranked))
        pairs = [(worth[i], worth[j]) for i, j in combinations(range(len(worth)), 2) if worth[i] != worth[j]]
        return fmean(float(a > b) for a, b in pairs) if pairs else None

    # ---- the four questions

    def points(
        self, prompts: Sequence[Prompt], texts: Sequence[str], criterion: Criterion | None = None
    ) -> list[float]:
        c = criterion or self.criterion
        self.calls += len(texts)
        found = zip(prompts, texts, self.seen(prompts, texts, c), strict=True)
        return [self.on_scale(v + self.shared * self.normal("question", c.aspect, p.id, t), c) for p, t, v in found]

    def together(self, cases: Sequence[Case], criterion: Criterion | None = None) -> list[list[float]]:
        c = criterion or self.criterion
        self.calls += len(cases)
        out = []
        for p, texts in cases:
            bias = self.shared * self.normal("question", c.aspect, p.id, *texts)
            out.append([self.on_scale(v + bias, c) for v in self.seen([p] * len(texts), texts, c)])
        return out

    def prefer(
        self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str], criterion: Criterion | None = None
    ) -> list[float]:
        c = criterion or self.criterion
        self.calls += len(a)
        seen_a, seen_b = self.seen(prompts, a, c), self.seen(prompts, b, c)
        gaps = [(x - y + self.first) / self.temperature for x, y in zip(seen_a, seen_b, strict=True)]
        chances = [self.flip + (1 - 2 * self.flip) * sigmoid(g) for g in gaps]
        if not self.decided:
            return chances
        drawn = [self.draw("pair", c.aspect, p.id, x, y) for p, x, y in zip(prompts, a, b, strict=True)]
        return [float(u < chance) for u, chance in zip(drawn, chances, strict=True)]

    def rank(self, cases: Sequence[Case], criterion: Criterion | None = None) -> list[tuple[int, ...]]:
        c = criterion or self.criterion
        self.calls += len(cases)
        out = []
        for p, texts in cases:
            order = list(best_first(self.seen([p] * len(texts), texts, c), p.id, *texts))
            for i in range(len(order) - 1):
                if self.draw("neighbours", c.aspect, p.id, i, *texts) < self.flip:
                    order[i], order[i + 1] = order[i + 1], order[i]
            out.append(tuple(order))
        return out

    def draw(self, *identity: object) -> float:
        return rng.python("oracle", self.seed, *identity).random()

    def on_scale(self, value: float, c: Criterion) -> float:
        return float(round(c.low + (c.high - c.low) * sigmoid(value)))

    def counts(self) -> dict[str, float]:
        return {"judge_calls": float(self.taken())}


def sigmoid(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))
