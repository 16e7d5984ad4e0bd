"""PURE: process rewards in min form, so that a chain is worth its worst step, with leave-one-out credit."""

from __future__ import annotations

from posttrain.advantages.pure import pure as per_token
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.losses.aggregate import token_mean
from posttrain.losses.terms.kl import kl
from posttrain.methods.asked import asked_task
from posttrain.methods.grpo import grpo
from posttrain.rewards.fine_grained import FineGrained, models_of
from posttrain.rewards.shaping.min_form import min_form


def min_form_rl(temperature: float = 0.1, outcome: str = "", beta: float = 0.001) -> Method:
    """PPO's clip on min-form credit, with a light KL."""
    return grpo.but(
        name="pure", title="PURE", paper="arXiv:2504.15275", doc=__doc__,
        shaping=(min_form.but(temperature=temperature, outcome=outcome),), advantage=per_token.but(outcome=outcome),
        aggregate=token_mean, terms=(kl.but(coef=beta),),
    )  # fmt: skip


@plan(paper="arXiv:2504.15275", title="PURE")
def pure(steps: int = 60, rewards: str = "line:repetition + answer:task", temperature: float = 0.1) -> Plan:
    """PURE: RL on process rewards whose sum is replaced by their soft minimum, beside the checked answer.

    r*_i = r_i softmin_i(r / T);  A_t = sum_{s >= t} (r*_s - b) + (R - mean of others' R)
    rewards: "weight*level:rule + ...", as in fine-grained-rlhf; those of the level answer are R.
    """

    def scorer(context: Context) -> FineGrained:
        return FineGrained(models_of(rewards, asked_task(context)), context.role("policy").decode)

    whole = [piece.split("*")[-1].strip() for piece in rewards.split("+") if "answer:" in piece]
    outcome = whole[0].replace(":", "-") if len(whole) == 1 else ""
    phase = Phase("pure", min_form_rl(temperature, outcome), steps, asked_task, rewards=scorer)
    options = {"steps": steps, "rewards": rewards, "temperature": temperature}
    return Plan("pure", (phase,), "PURE", "arXiv:2504.15275", pure.__doc__ or "", options)
