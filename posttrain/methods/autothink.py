"""AutoThink: learn when to think in three stages of GRPO: keep both modes alive, make both accurate, then shorten."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.registry import Part
from posttrain.methods.asked import asked_task
from posttrain.methods.grpo import grpo
from posttrain.rewards.rules.task import task as own_grade
from posttrain.rewards.rules.thinks import thinks
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.shaping.autothink import autothink as naive
from posttrain.rewards.shaping.autothink_balance import autothink_balance
from posttrain.rewards.shaping.autothink_length import autothink_length

STAGES: tuple[tuple[str, Part], ...] = (("balance", autothink_balance), ("both", naive), ("prune", autothink_length))


@plan(paper="arXiv:2505.10832", title="AutoThink")
def autothink(balance: int = 20, both: int = 60, prune: int = 20) -> Plan:
    """AutoThink: rewards that favour answering at once when it is right, in three stages of so many steps of GRPO.

    balance: AutoThink's rewards, less for the mode that the batch chose too often;  both: the rewards alone;
    prune: plus a bonus for shorter right and longer wrong answers
    The start policy must show both modes: the paper's prompt ends in "<think>\\n...\\n", at which a model that was
    distilled to think closes the tag at once about every other time. An answer thought if `thinks` says so.
    """
    steps = {"balance": balance, "both": both, "prune": prune}
    if min(steps.values()) < 0 or not sum(steps.values()):
        raise UserError(f"got {steps}; a stage takes 0 steps or more, and one of them some")

    def rewards(context: Context) -> RewardSum:
        graded = own_grade.but(environment=asked_task(context))
        return RewardSum([("task", graded, 1.0), ("thinks", thinks, 0.0)], context.config.reward_timeout)

    parts = tuple(
        Phase(
            name, grpo.but(name=f"autothink-{name}", shaping=part.but(outcome="task", mode="thinks"), terms=()), steps[name],
            asked_task, rewards=rewards,
        )
        for name, part in STAGES if steps[name]
    )  # fmt: skip
    return Plan("autothink", parts, "AutoThink", "arXiv:2505.10832", autothink.__doc__ or "", steps)
