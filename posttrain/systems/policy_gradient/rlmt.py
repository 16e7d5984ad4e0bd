"""RLMT: reinforcement learning with model-rewarded thinking; a thought, then an answer, and a reward model reads only the latter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from posttrain.core.answers import final_answer
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.registry import scorer
from posttrain.core.types import Group, Prompt
from posttrain.environments.worked import Worked
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.methods.sft import sft
from posttrain.rewards.runtime.scorer import BaseScorer, Prescored, Verdict, answers_of
from posttrain.rollouts.sample import sample

# ---- what answers are worth
# Think first, be judged by the answer (RLMT, arXiv:2509.20357): a reward that never sees the thought.


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


# ---- the plan

QUESTIONS = 500  # of the warm start


def thinking(n: int = 8, beta: float = 0.001) -> Method:
    """The best of the paper's three optimisers, GRPO: A = (R - mean) / std for every token of thought and answer."""
    return grpo.but(
        name="rlmt", title="RLMT", paper="arXiv:2509.20357", doc=__doc__,
        rollout=sample.but(n=n), terms=kl.but(coef=beta, kind="k3"),
    )  # fmt: skip


@plan(paper="arXiv:2509.20357", title="RLMT")
def rlmt(steps: int = 60, warmup: int = 0, n: int = 8, beta: float = 0.001) -> Plan:
    """RLMT: the model writes <think>...</think> and an answer; the settings' reward sees the answer alone.

    R = r(x, answer);  A = (R - mean_group) / std_group for the thought's tokens too
    warmup: steps of SFT on worked answers first (the paper's warm start); 0 begins with RL (its "zero").

    Departures: the paper's reward is Skywork's 8B model, to be named with `--reward FOLDER` (a Hugging Face
    classifier with one label); without it the task's own grade pays. Its warm start is about 6,000 thoughts with
    plans by a teacher; here none by default, and `warmup` imitates a row's written solution, or its bare gold answer.
    Its loss is a mean over tokens with an entropy bonus of 0.001, here over each answer with none; it samples 64
    prompts at temperature 0.7, here 16 at 1. An unclosed thought earns the least of the step; one that the chat
    template opened and the limit cut is taken for an answer. GRPO with 8 answers and KL 0.001 is the paper's best.
    """
    if steps < 1 or warmup < 0 or n < 2:
        raise UserError(f"got steps={steps}, warmup={warmup}, n={n}; it takes 1 step and 2 answers at least")

    def worked(context: Context) -> Any:
        return Worked(asked_task(context), QUESTIONS)

    def rewards(context: Context) -> AnswerOnly:
        scorer = asked_rewards(context)
        return AnswerOnly(lambda prompts, texts: scorer.texts(prompts, texts)[0])

    warm = (Phase("sft", sft, warmup, worked, rewards=lambda c: Prescored()),) if warmup else ()
    learn = Phase("rlmt", thinking(n, beta), steps, asked_task, rewards=rewards)
    return Plan((*warm, learn))
