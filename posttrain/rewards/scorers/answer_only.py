"""Think first, be judged by the answer (RLMT, arXiv:2509.20357): a reward that never sees the thought."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from posttrain.core.registry import scorer
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import final_answer
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of


@scorer(title="Answer only", paper="arXiv:2509.20357")
class AnswerOnly(BaseScorer):
    """Answer only: R = reward(prompt, what follows the last </think>); the whole rollout, thought included, is credited with it.

    A thought that was never closed has no answer: it earns the least that any answer of the step did, so that it is neither
    free nor masked. `answer` says where the answer is in a text (None: nowhere). What the reward cannot score is masked.
    """

    reported, by_name = ("answer",), {"reward": "texts"}

    def __init__(
        self,
        reward: Callable[[Sequence[Prompt], Sequence[str]], Sequence[float]],
        answer: Callable[[str], str | None] = final_answer,
    ) -> None:
        self.reward, self.answer = reward, answer

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts = answers_of(groups)
        answers = [self.answer(r.text) for r in rollouts]
        there = [(r.prompt, a) for r, a in zip(rollouts, answers, strict=True) if a is not None]
        found = [float(x) for x in self.reward([p for p, _ in there], [a for _, a in there])] if there else []
        least = min((x for x in found if math.isfinite(x)), default=0.0)
        said = iter(found)
        worth = [least if a is None else next(said) for a in answers]
        return [
            Verdict(x, {"answer": x, "answered": float(a is not None)}) for x, a in zip(worth, answers, strict=True)
        ]
