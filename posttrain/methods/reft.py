"""ReFT: a short warm-up on one worked answer a question, then PPO on the same questions, where wrong answers teach too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.types import Prompt
from posttrain.environments.base import size_of
from posttrain.environments.task import task
from posttrain.evals.accuracy import accuracy
from posttrain.losses.value.value_loss import value_loss
from posttrain.methods.ppo import ppo
from posttrain.methods.sft import sft
from posttrain.rewards.rules.partial_credit import partial_credit
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward


def reinforced(beta: float = 0.05) -> Method:
    """The PPO of ReFT: GAE as PPO has it (gamma 1, lambda 0.95), the critic's loss five times, KL in the reward.

    beta: 0.05 for answers in words, 0.01 for programs.
    """
    return ppo.but(
        name="reft", title="ReFT", paper="arXiv:2401.08967", doc=__doc__,
        shaping=kl_in_reward.but(coef=beta), terms=value_loss.but(coef=5.0),
    )  # fmt: skip


class Worked:
    """The first `size` training questions of a task, each with a worked answer to imitate; its test questions as they are."""

    def __init__(self, env: Any, size: int) -> None:
        self.env, self.name, self.size = env, env.name, min(size, size_of(env, "train") or size)

    def prompt(self, index: int, split: str = "train") -> Prompt:
        if split != "train":
            return self.env.prompt(index, split)
        return with_steps(self.env.prompt(index % self.size, split))

    def grade(self, prompt: Prompt, text: str) -> float:
        return float(self.env.grade(prompt, text))


def with_steps(prompt: Prompt) -> Prompt:
    """The demonstration `<think>STEPS</think>ANSWER` where the question has steps; one that it brought along stays."""
    steps = prompt.info.get("steps")
    if "demonstration" in prompt.info or not steps or not prompt.info.get("think", True):
        return prompt
    return replace(prompt, info=prompt.info | {"demonstration": f"<think>{steps}</think>{prompt.answer}"})


@plan(paper="arXiv:2401.08967", title="ReFT")
def reft(
    questions: int = 500, warmup: int = 20, steps: int = 60, beta: float = 0.05, credit: float = 0.1
) -> Plan:  # fmt: skip
    """ReFT: SFT on one worked answer a question, then PPO on the same questions with their answers checked.

    r_t = R(at the end) - beta KL;  R = 1 right, credit another number, 0 none;  GAE gamma 1, lambda 0.95
    questions: how many there are, for both phases. warmup, steps: of SFT and of PPO; warmup=0 begins with PPO.
    """
    if questions < 1 or warmup < 0 or steps < 1:
        raise UserError(
            f"got questions={questions}, warmup={warmup}, steps={steps}; it takes 1 question and 1 step at least"
        )

    def env(context: Context) -> Worked:
        c = context.config
        return Worked(task(c.task, level=c.level, think=c.think, data=c.data or None), questions)

    def rewards(context: Context) -> RewardSum:
        return RewardSum([("partial_credit", partial_credit.but(credit=credit), 1.0)], context.config.reward_timeout)

    def measure(name: str) -> Do:
        def work(context: Context) -> None:
            c = context.config
            found = accuracy(context.role("policy"), env(context), c.eval_problems, c.sampling)
            context.notes.setdefault("accuracy", {})[name] = found.accuracy

        return Do(f"accuracy-{name}", work)

    warm = (Phase("sft", sft, warmup, env, rewards=lambda c: Prescored()), measure("after-sft")) if warmup else ()
    learn = Phase("ppo", reinforced(beta), steps, env, rewards=rewards)
    parts = (measure("before"), *warm, learn, measure("after-ppo"))
    options = {"questions": questions, "warmup": warmup, "steps": steps, "beta": beta, "credit": credit}
    return Plan("reft", parts, "ReFT", "arXiv:2401.08967", reft.__doc__ or "", options)
