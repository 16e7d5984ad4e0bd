"""Courtesy: small talk with a hidden taste. The one task here whose right answer is a matter of degree.

Prompts are the school's instructions (`Thank Mia.`). What an answer is worth is known exactly, but meant to be hidden
from training, which sees only noisy comparisons: then one can watch a learned reward go wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from posttrain.core import rng as draws
from posttrain.core.answers import final_answer
from posttrain.core.protocols import Environment
from posttrain.core.types import Prompt
from posttrain.environments.base import Task
from posttrain.environments.school import school
from posttrain.environments.school.instructions import politeness, unmet, variants, warmth, words_of

WORDS = 9  # the length that is liked best
WARM = 3  # so is this much warmth: less is cold, more is gushing


def utility(prompt: Prompt, text: str) -> float:
    """The hidden taste: polite, warm but not gushing, of a fit length, to the point, without saying things twice.

    U = (1 - e^-p) + (w/3) e^(1 - w/3) - ((n - 9)/6)^2 - 1.5 (constraints broken) - (words said again) / 2
    p markers of politeness, w of warmth (3 is best), n words (9 is best). At most 2, without a lower bound.
    """
    said = words_of(final_answer(text) or "")
    again = sum(count - 1 for count in Counter(said).values())
    warm = warmth(text) / WARM
    manner = 1 - math.exp(-politeness(text)) + warm * math.exp(1 - warm)
    return manner - ((len(said) - WORDS) / 6) ** 2 - 1.5 * len(unmet(prompt.info, text)) - again / 2


@dataclass(frozen=True)
class Courtesy(Environment):
    """Prompts with a demonstration each, of mixed quality: any register, and beside the point once in `careless`."""

    level: int = 1
    careless: float = 0.25
    seed: int = 0
    name: str = field(default="courtesy")

    @cached_property
    def asks(self) -> Task:
        return school("instructions", self.level, think=False, seed=self.seed)

    def prompt(self, index: int, split: str = "train") -> Prompt:
        p = self.asks.prompt(index, split)
        return Prompt(f"{self.name}-{p.id}", p.content, p.answer, {**p.info, "demonstration": self._shown(p)})

    def _shown(self, prompt: Prompt) -> str:
        rng = draws.python("courtesy", self.seed, prompt.id)
        if rng.random() < self.careless:  # an answer to somebody else's question
            prompt = self.asks.prompt(rng.randrange(10**6), "train")
        return rng.choice(list(variants(prompt, rng).values()))

    def grade(self, prompt: Prompt, text: str) -> float:
        """The utility as a number in (0, 1): sigmoid(U)."""
        return 1 / (1 + math.exp(-max(utility(prompt, text), -50.0)))

    def validate(self, n: int) -> list[str]:
        """Test the grader: nothing at all, an echo and an evasion must all lose to a right answer."""
        problems = []
        for i in range(n):
            p = self.prompt(i, ("train", "test")[i % 2])
            gold = self.grade(p, str(p.answer))
            for wrong in ("", f"{p.answer} {p.answer}", "I do not know what that is about."):
                if self.grade(p, wrong) >= gold:
                    problems.append(f"{p.id}: {wrong!r} is worth no less than {p.answer!r}")
        return problems
