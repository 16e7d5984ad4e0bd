"""SPO: no reward model and no opponent; an answer's reward is how often it beats the policy's own other answers."""

from __future__ import annotations

from posttrain.advantages.dr_grpo import dr_grpo
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.losses.regularisers.kl import kl as kl_term
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_judge, asked_task, needs_judge
from posttrain.rewards.scorers.pairwise import WinRate
from posttrain.rollouts.sample import sample


def self_play(n: int = 8, kl: float = 0.0) -> Method:
    """Any policy gradient will do; here PPO's clip with the group's mean as baseline, which is 1/2 by symmetry.
    kl: the price of leaving the start, k3."""
    return grpo.but(
        name="spo-minimaximalist", title="SPO", paper="arXiv:2401.04056", doc=__doc__,
        rollout=sample.but(n=n), advantage=dr_grpo, terms=(kl_term.but(coef=kl),) if kl else (),
    )  # fmt: skip


@plan(paper="arXiv:2401.04056", title="SPO (minimaximalist)")
def spo_minimaximalist(steps: int = 60, n: int = 8, k: float = 1.0, orders: str = "both", kl: float = 0.01) -> Plan:  # fmt: skip
    """SPO: self-play preference optimisation; one learner against itself, on average the minimax winner.

    R_i = 1/(n - 1) sum_{j != i} P(y_i > y_j);  y_1..y_n from the policy as it is, so the reward moves with it
    orders: see rewards/scorers/pairwise.py. kl: the price of leaving the start; 0 is self-play alone, which may circle.

    Departures: the paper's guarantee is for the average of the policies over time. None is kept, since the average of a
    network's weights is not the average of its policies; the last one is the result, and a KL of 0.01 to the start, which the
    paper does not have, keeps it from circling (regularised self-play converges in its last policy, arXiv:2312.00886). Rewards
    are compared among 8 fresh answers; the paper also keeps a queue of older ones. Its judge must be given: `--reward
    FILE.py:FUNCTION` of (prompt, a, b), or any reward r, which judges by sigmoid(k (r_a - r_b)); without one it ends with a
    sentence. The optimiser is free in the paper; here it is PPO's clip without a std.
    """
    if steps < 1 or n < 2 or kl < 0:
        raise UserError(
            f"got steps={steps}, n={n}, kl={kl}; it takes 1 step, 2 answers to compare, and a price of 0 or more"
        )

    def rewards(context: Context) -> WinRate:
        return WinRate(asked_judge(context, k), orders=orders)

    phase = Phase("spo", self_play(n, kl), steps, asked_task, rewards=rewards)
    return Plan((phase,), ready=needs_judge("spo-minimaximalist"))
