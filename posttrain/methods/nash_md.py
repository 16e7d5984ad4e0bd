"""Nash-MD: learn to beat, as a judge of pairs sees it, a mixture of oneself and the reference, and pay for leaving the latter."""

from __future__ import annotations

from posttrain.advantages.baseline import baseline
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Phase, Plan, plan
from posttrain.methods.asked import asked_task
from posttrain.methods.judged import asked_judge
from posttrain.methods.reinforce import reinforce
from posttrain.rewards.scorers.opponent import Opponent
from posttrain.rewards.scorers.pairwise import WinRate
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample


def against_mixture(tau: float = 0.05, n: int = 8) -> Method:
    """The paper's gradient: d log pi(y) (P(y > y') - 1/2 - tau log(pi(y) / ref(y)))."""
    return reinforce.but(
        name="nash-md", title="Nash-MD", paper="arXiv:2312.00886", doc=__doc__,
        rollout=sample.but(n=n), shaping=kl_in_reward.but(coef=tau), advantage=baseline.but(c=0.5),
    )  # fmt: skip


@plan(paper="arXiv:2312.00886", title="Nash-MD")
def nash_md(
    steps: int = 60, beta: float = 0.125, tau: float = 0.05, n: int = 8, m: int = 1, k: float = 1.0
) -> Plan:  # fmt: skip
    """Nash-MD: towards the equilibrium of P(pi > pi') - tau KL(pi || ref) + tau KL(pi' || ref); the last policy, not an average.

    R = 1/m sum_j P(y > y'_j) - tau log(pi(y) / ref(y));  A = R - 1/2;  y'_j from pi^(1 - beta) ref^beta / Z (rewards/opponent.py)
    beta: 0 is self-play, 1 the best answer to the reference; the paper's best are 0.125 to 0.375, its tau is 0.008.
    """
    if steps < 1 or n < 1 or m < 1:
        raise UserError(f"got steps={steps}, n={n}, m={m}; it takes 1 of each at least")

    def rewards(context: Context) -> WinRate:
        c = context.config
        other = Opponent(context.role("policy"), context.role("start"), c.sampling, beta, m, c.seed)
        return WinRate(asked_judge(context, k), other)

    learn = Phase("nash-md", against_mixture(tau, n), steps, asked_task, rewards=rewards, reference="start")
    options = {"steps": steps, "beta": beta, "tau": tau, "n": n, "m": m, "k": k}
    doc = nash_md.__doc__ or ""
    return Plan("nash-md", (Copy("policy", "start"), learn), "Nash-MD", "arXiv:2312.00886", doc, options)
