"""HC-RLHF: train under a pessimistic limit on the cost, then let the model out only if a test on held-out prompts passes."""

from __future__ import annotations

import math

from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Gate, Phase, Plan, plan
from posttrain.core.types import Group
from posttrain.evals.safety_test import safety_test
from posttrain.methods.asked import asked_rewards, asked_task
from posttrain.methods.ppo import ppo
from posttrain.rewards.runtime.spec import build_scorer
from posttrain.rewards.scorers.costed import Costed
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rewards.shaping.pessimistic_cost import pessimistic_cost


def candidate(limit: float, delta: float, n: int, inflate: float = 2.0, beta: float = 0.02) -> Method:
    """PPO-Lagrangian on the bound that the safety test of n answers will use, inflated (the authors: RLOO, two answers)."""
    held = pessimistic_cost.but(limit=limit, delta=delta, n=n, inflate=inflate)  # type: ignore[attr-defined]
    return ppo.but(
        name="hc-rlhf", title="HC-RLHF", paper="arXiv:2506.08266", doc=__doc__,
        shaping=(held, kl_in_reward.but(coef=beta)),
    )  # fmt: skip


@plan(paper="arXiv:2506.08266", title="HC-RLHF")
def hc_rlhf(
    steps: int = 60, cost: str = "-1*length(most=60)", limit: float = -0.9, delta: float = 0.05, n: int = 200,
    bound: str = "student",
) -> Plan:  # fmt: skip
    """HC-RLHF: a candidate by PPO-Lagrangian, then a safety test as gate: the chance of an unsafe model is at most delta.

    passes if mean c + s / sqrt(n) t_{1 - delta, n - 1} <= limit on n answers to prompts that training has not seen
    cost: a reward like any other ("mine.py:harm"), counted as bad. Else it ends with: no solution found.
    """
    if steps < 1 or n < 2:
        raise UserError(f"got steps={steps}, n={n}; it takes 1 step and a test of 2 answers at least")

    def costs(context: Context) -> Costed:
        c = context.config
        return Costed(asked_rewards(context), build_scorer(cost, asked_task(context), c.reward_timeout))

    def test(context: Context) -> None:
        c, env = context.config, asked_task(context)
        prompts = [env.prompt(i, "test") for i in range(n)]
        made = context.role("policy").sample(prompts, 1, c.sampling, c.seed, -3)
        groups = [Group(p, rollouts) for p, rollouts in zip(prompts, made, strict=True)]
        costs(context).score(groups)
        found = [r.rewards["cost"] for g in groups for r in g.rollouts]
        known = [x for x in found if not math.isnan(x)]
        context.notes["safety"] = safety_test(known, limit, delta, bound) | {"failed": float(len(found) - len(known))}

    parts = (
        Phase("candidate", candidate(limit, delta, n), steps, asked_task, rewards=costs),
        Do("safety-test", test),
        Gate(
            "safe", lambda c: c.notes["safety"]["passed"] == 1 and c.notes["safety"]["failed"] == 0,
            "no solution found: the safety test did not pass, so this model is not to be used",
        ),
    )  # fmt: skip
    options = {"steps": steps, "cost": cost, "limit": limit, "delta": delta, "n": n, "bound": bound}
    return Plan("hc-rlhf", parts, "HC-RLHF", "arXiv:2506.08266", hc_rlhf.__doc__ or "", options)
