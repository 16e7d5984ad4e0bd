"""SPO: no reward model and no opponent; an answer's reward is how often it beats the policy's own other answers."""

from __future__ import annotations

from posttrain.advantages.dr_grpo import dr_grpo
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_judge, asked_task
from posttrain.rewards.scorers.pairwise import WinRate
from posttrain.rollouts.sample import sample


def self_play(n: int = 8) -> Method:
    """Any policy gradient will do; here PPO's clip with the group's mean as baseline, which is 1/2 by symmetry."""
    return grpo.but(
        name="spo-minimaximalist", title="SPO", paper="arXiv:2401.04056", doc=__doc__,
        rollout=sample.but(n=n), advantage=dr_grpo, terms=(),
    )  # fmt: skip


@plan(paper="arXiv:2401.04056", title="SPO (minimaximalist)")
def spo_minimaximalist(steps: int = 60, n: int = 8, k: float = 1.0, orders: str = "both") -> Plan:
    """SPO: self-play preference optimisation; one learner against itself, on average the minimax winner.

    R_i = 1/(n - 1) sum_{j != i} P(y_i > y_j);  y_1..y_n from the policy as it is, so the reward moves with it
    orders: see rewards/scorers/pairwise.py.

    Departures: the paper's guarantee is for the average of the policies over time; none is kept, the last one is the
    result, and with no KL or entropy term it may circle around it. Rewards are compared among 8 fresh answers; the
    paper also keeps a queue of older ones. Its judge must be given: `--reward FILE.py:FUNCTION` of (prompt, a, b), or
    any reward r, which judges by sigmoid(k (r_a - r_b)); without one the task's own grade is that r. The optimiser is
    free in the paper; here it is PPO's clip without a std.
    """
    if steps < 1 or n < 2:
        raise UserError(f"got steps={steps}, n={n}; it takes 1 step, and 2 answers to compare")

    def rewards(context: Context) -> WinRate:
        return WinRate(asked_judge(context, k), orders=orders)

    phase = Phase("spo", self_play(n), steps, asked_task, rewards=rewards)
    return Plan((phase,))
