"""SALSA: PPO held near the average of two fine-tunings instead of near one of them, where reward is easier to find."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Phase, Plan, plan
from posttrain.environments.task import task
from posttrain.environments.worked import Worked
from posttrain.methods.ppo import ppo
from posttrain.methods.sft import sft
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.weights.soup import soup


@plan(paper="arXiv:2411.01798", title="SALSA", uses=("task",))
def salsa(questions: int = 500, warmup: int = 20, steps: int = 60, beta: float = 0.02, alpha: float = 0.5) -> Plan:
    """SALSA: two SFT runs of one model on other samples, then PPO from the first with a KL to the average of both.

    theta_ref = alpha theta_1 + (1 - alpha) theta_2;  maximise E[R - beta log(pi / pi_ref)]
    questions: how many worked answers there are. warmup, steps: of each SFT and of PPO.

    Departures: the paper's PPO is paid by a reward model; here the task's own grade pays and `--reward` is ignored.
    Its two SFT models are whole fine-tunings on chat data; here 20 steps each on up to 500 questions, and rows
    without a written solution are imitated by their bare gold answer. It tunes the KL price (0.02 here). alpha 0.5 is
    the paper's.
    """
    if questions < 1 or warmup < 1 or steps < 1:
        raise UserError(f"got questions={questions}, warmup={warmup}, steps={steps}; each must be at least 1")

    def env(context: Context) -> Worked:
        c = context.config
        return Worked(task(c.task, level=c.level, think=c.think, data=c.data or None), questions)

    method = ppo.but(
        name="salsa", title="SALSA", paper="arXiv:2411.01798", doc=__doc__,
        shaping=kl_in_reward.but(coef=beta), reference=soup.but(alpha=alpha),  # type: ignore[attr-defined]
    )  # fmt: skip
    parts = (
        Copy("policy", "base"),
        Phase("sft", sft, warmup, env, rewards=lambda c: Prescored()),
        Phase("sft-other", sft, warmup, env, "other", lambda c: c.role("base").clone(), rewards=lambda c: Prescored()),
        Phase("ppo", method, steps, env, reference="other"),
    )
    return Plan(parts)
