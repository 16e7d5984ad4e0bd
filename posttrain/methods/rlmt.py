"""RLMT: reinforcement learning with model-rewarded thinking; a thought, then an answer, and a reward model reads only the latter."""

from __future__ import annotations

from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.asked import asked_rewards, asked_task
from posttrain.methods.grpo import grpo
from posttrain.methods.reft import Worked
from posttrain.methods.sft import sft
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.scorers.answer_only import AnswerOnly
from posttrain.rollouts.sample import sample

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
    options = {"steps": steps, "warmup": warmup, "n": n, "beta": beta}
    return Plan("rlmt", (*warm, learn), "RLMT", "arXiv:2509.20357", rlmt.__doc__ or "", options)
