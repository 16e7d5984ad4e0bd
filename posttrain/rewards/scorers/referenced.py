"""Rewards beside those of a reference policy's own answers to the same prompts."""

from __future__ import annotations

import math
from typing import Any

from posttrain.core.registry import scorer
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of


@scorer(title="Beside a reference's answers", paper="arXiv:2502.18770")
class Referenced(BaseScorer):
    """Beside a reference's answers: the reward of `scorer`, and what m answers of a reference policy earn.

    They are the components reference0, reference1... They are drawn by the prompt's identity and kept, so each prompt is answered and scored once, and a resumed run
    finds the same. An answer none of whose references could be scored is masked.
    """

    def __init__(self, scorer: Any, policy: Any, how: Sampling, m: int = 1, seed: int = 0) -> None:
        self.inner, self.policy, self.how, self.m, self.seed = scorer, policy, how, m, seed
        self.known: dict[str, list[float]] = {}

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        self.ask([g.prompt for g in groups])
        found = [self.known[r.prompt.id] for r in answers_of(groups)]
        return [
            Verdict(
                math.nan if all(math.isnan(x) for x in some) else None,
                {f"reference{i}": x for i, x in enumerate(some)},
            )
            for some in found
        ]

    def ask(self, prompts: list[Prompt]) -> None:
        """Answer and score what was not asked before."""
        fresh = list({p.id: p for p in prompts if p.id not in self.known}.values())
        if not fresh:
            return
        made = self.policy.sample(fresh, self.m, self.how, self.seed, -1)
        groups = [Group(p, rollouts) for p, rollouts in zip(fresh, made, strict=True)]
        self.inner.score(groups)
        for g in groups:
            self.known[g.prompt.id] = [math.nan if r.reward is None else r.reward for r in g.rollouts]
