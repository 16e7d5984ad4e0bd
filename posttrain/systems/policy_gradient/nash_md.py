"""Nash-MD: learn to beat, as a judge of pairs sees it, a mixture of oneself and the reference, and pay for leaving the latter."""

from __future__ import annotations

from typing import Any

import torch

from posttrain.advantages.baseline import baseline
from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Phase, Plan, plan
from posttrain.core.protocols import Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group
from posttrain.methods.reinforce import reinforce
from posttrain.methods.settings import asked_judge, asked_task
from posttrain.rewards.scorers.pairwise import WinRate
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample

# ---- what answers are worth
# Whom answers are compared with: m answers of a mixture between the policy as it is and a reference.


class Opponent:
    """Answers from the geometric mixture pi^(1 - beta) ref^beta / Z, for `WinRate(judge, others=Opponent(...))`.

    It is made of weights, (1 - beta) theta + beta theta_ref: for logits linear in the weights (a table) that is each token's
    geometric mixture exactly; for a network it is so to first order (the paper mixes logits; its Nash-EMA mixes weights).
    beta = 0 is the policy itself, 1 the reference.
    """

    def __init__(
        self, policy: Policy, reference: Policy, how: Sampling, beta: float = 0.125, m: int = 1, seed: int = 0
    ) -> None:
        if not 0 <= beta <= 1 or m < 1:
            raise UserError(f"got beta={beta}, m={m}; beta is a share between 0 and 1, and m at least 1")
        self.policy, self.reference, self.how, self.beta, self.m, self.seed = policy, reference, how, beta, m, seed
        self.mixed = reference.clone()

    def __call__(self, groups: list[Group]) -> list[list[str]]:
        """m texts for each group, by the identity of its prompt and step."""
        mixed = self.mixture()
        step = max((r.version for g in groups for r in g.rollouts), default=0)
        seed = rng.key(self.seed, "opponent") & 0x7FFFFFFF  # other draws than the policy's own
        made = mixed.sample([g.prompt for g in groups], self.m, self.how, seed, step)
        return [[r.text for r in rollouts] for rollouts in made]

    @torch.no_grad()
    def mixture(self) -> Any:
        """The mixture as it is now."""
        live, ref = dict(self.policy.named_parameters()), dict(self.reference.named_parameters())
        for name, p in self.mixed.named_parameters():
            p.copy_(torch.lerp(live[name].detach().to(ref[name]), ref[name].detach(), self.beta))
        return self.mixed


# ---- the plan


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

    R = 1/m sum_j P(y > y'_j) - tau log(pi(y) / ref(y));  A = R - 1/2;  y'_j from pi^(1 - beta) ref^beta / Z (`Opponent`)
    beta: 0 is self-play, 1 the best answer to the reference.

    Departures: the opponent is sampled from interpolated weights, (1 - beta) theta + beta theta_ref, where the paper
    mixes the two policies' logits at each token: the same to first order only. tau is 0.05, the paper's 0.008; its
    best beta are 0.125 to 0.375. Its judge is a learned model of pairs, which must be given:
    `--reward FILE.py:FUNCTION` of (prompt, a, b), or a reward r (`runs/NAME`), which judges by sigmoid(k (r_a -
    r_b)); without one the task's own grade is that r.
    """
    if steps < 1 or n < 1 or m < 1:
        raise UserError(f"got steps={steps}, n={n}, m={m}; it takes 1 of each at least")

    def rewards(context: Context) -> WinRate:
        c = context.config
        other = Opponent(context.role("policy"), context.role("start"), c.sampling, beta, m, c.seed)
        return WinRate(asked_judge(context, k), other)

    learn = Phase("nash-md", against_mixture(tau, n), steps, asked_task, rewards=rewards, reference="start")
    return Plan((Copy("policy", "start"), learn))
