"""Writing-Zero (BRPO): each answer is judged beside one of its siblings, drawn at random; win or lose is the advantage itself."""

from __future__ import annotations

from posttrain.advantages.outcome import outcome
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.losses.aggregate import token_mean
from posttrain.methods.asked import asked_task
from posttrain.methods.grpo import grpo
from posttrain.methods.judged import asked_judge
from posttrain.rewards.scorers.bootstrapped import Bootstrapped
from posttrain.rollouts.sample import sample
from posttrain.select.balanced import balanced


def brpo(n: int = 8, limit: float = 0.6) -> Method:
    """PPO's clip on +-1 as they are: the reference is drawn from the same policy, so that they have the mean 0 already."""
    return grpo.but(
        name="writing-zero", title="Writing-Zero (BRPO)", paper="arXiv:2506.00103", doc=__doc__,
        rollout=sample.but(n=n), select=balanced.but(limit=limit), advantage=outcome, aggregate=token_mean, terms=(),
    )  # fmt: skip


@plan(paper="arXiv:2506.00103", title="Writing-Zero (BRPO)")
def writing_zero(steps: int = 60, n: int = 8, limit: float = 0.6, k: float = 1.0, orders: str = "drawn") -> Plan:
    """Writing-Zero (BRPO): bootstrapped relative policy optimisation, for tasks where answers can only be compared.

    A_i = R_i = 1 if y_i beats y_ref, else -1;  y_ref: one of the n, at random;  groups with |mean R| > limit go
    The judge: --reward FILE.py:FUNCTION of (prompt, a, b), or any reward r by sigmoid(k (r_a - r_b)). The paper's judge is a
    model that writes a critique first, trained by RL; here it is given. The paper has n = 16.
    """
    if steps < 1 or n < 3:
        raise UserError(f"got steps={steps}, n={n}; it takes 1 step, and a reference with 2 others")

    def rewards(context: Context) -> Bootstrapped:
        return Bootstrapped(asked_judge(context, k), orders, context.config.seed)

    options = {"steps": steps, "n": n, "limit": limit, "k": k, "orders": orders}
    phase, doc = Phase("brpo", brpo(n, limit), steps, asked_task, rewards=rewards), writing_zero.__doc__ or ""
    return Plan("writing-zero", (phase,), "Writing-Zero (BRPO)", "arXiv:2506.00103", doc, options)
