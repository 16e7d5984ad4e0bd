"""PAR: PPO on the reward model's own preference over the start policy's answer, a bounded reward that is hard to hack."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Phase, Plan, plan
from posttrain.methods.asked import asked_rewards, asked_task
from posttrain.methods.ppo import ppo
from posttrain.rewards.scorers.referenced import Referenced
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rewards.shaping.par import preference_as_reward


def shaped(k: float = 1.0, beta: float = 0.005) -> Method:
    """PPO whose reward is sigmoid(k (r - r_ref)), less beta KL."""
    return ppo.but(
        name="par", title="PAR", paper="arXiv:2502.18770", doc=__doc__,
        shaping=(preference_as_reward.but(k=k, against="reference"), kl_in_reward.but(coef=beta)),
    )  # fmt: skip


@plan(paper="arXiv:2502.18770", title="PAR")
def par(steps: int = 60, m: int = 1, k: float = 1.0, beta: float = 0.005) -> Plan:
    """PAR: PPO whose reward is the preference for an answer over m answers of the start policy to the same prompt.

    R = 1/m sum_j sigmoid(k (r - r_ref_j)) - beta KL;  r: the reward that the settings name (--reward)
    """
    if steps < 1 or m < 1:
        raise UserError(f"got steps={steps}, m={m}; it takes 1 step and 1 reference answer at least")

    def rewards(context: Context) -> Referenced:
        c = context.config
        return Referenced(asked_rewards(context), context.role("start"), c.sampling, m, c.seed)

    learn = Phase("par", shaped(k, beta), steps, asked_task, rewards=rewards, reference="start")
    options = {"steps": steps, "m": m, "k": k, "beta": beta}
    return Plan("par", (Copy("policy", "start"), learn), "PAR", "arXiv:2502.18770", par.__doc__ or "", options)
