"""SPO: no reward model and no opponent; an answer's reward is how often it beats the policy's own other answers."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.dr_grpo import dr_grpo
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Policy
from posttrain.core.registry import reference
from posttrain.losses.regularisers.kl import kl as kl_term
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_judge, asked_task, needs_judge
from posttrain.rewards.scorers.pairwise import WinRate
from posttrain.rollouts.sample import sample
from posttrain.weights.reference import Frozen

# ---- what comes out


@reference(title="Averaged in the end (SPO)", paper="arXiv:2401.04056", base="fixed")
class averaged(Frozen):
    """Averaged in the end (SPO): the policy the phase began with; after the last step the policy becomes the average of its own weights.

    theta <- 1/m sum_t theta_t over the last m of `steps` steps, m = share steps;  the reference itself stays fixed
    """

    def __init__(self, steps: int = 60, share: float = 0.5) -> None:
        self.steps, self.first = steps, min(steps - max(round(share * steps), 1), steps - 1)
        self.mean: dict[str, Tensor] = {}

    def start(self, policy: Policy) -> None:
        super().start(policy)
        self.mean = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in policy.named_parameters()}

    @torch.no_grad()
    def after_step(self, policy: Policy, step: int) -> None:
        if step < self.first:
            return
        for name, p in policy.named_parameters():
            self.mean[name].lerp_(p.detach().float(), 1 / (step - self.first + 1))
            if step == self.steps - 1:
                p.copy_(self.mean[name])

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {f"mean|{name}": x for name, x in self.mean.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        super().load({name: x for name, x in tensors.items() if not name.startswith("mean|")})
        for name, x in self.mean.items():
            x.copy_(tensors[f"mean|{name}"])


# ---- the plan


def self_play(n: int = 8, kl: float = 0.0, steps: int = 60, average: float = 0.0) -> Method:
    """Any policy gradient will do; here PPO's clip with the group's mean as baseline, which is 1/2 by symmetry.
    kl: the price of leaving the start, k3. average: the share of the steps whose weights are averaged in the end."""
    made = grpo.but(
        name="spo-minimaximalist", title="SPO", paper="arXiv:2401.04056", doc=__doc__,
        rollout=sample.but(n=n), advantage=dr_grpo, terms=(kl_term.but(coef=kl),) if kl or average else (),
    )  # fmt: skip
    return made.but(reference=averaged.but(steps=steps, share=average)) if average else made  # type: ignore[attr-defined]


@plan(paper="arXiv:2401.04056", title="SPO (minimaximalist)")
def spo_minimaximalist(
    steps: int = 60, n: int = 8, k: float = 1.0, orders: str = "both", kl: float = 0.01, average: float = 0.0
) -> Plan:  # fmt: skip
    """SPO: self-play preference optimisation; one learner against itself, on average the minimax winner.

    R_i = 1/(n - 1) sum_{j != i} P(y_i > y_j);  y_1..y_n from the policy as it is, so the reward moves with it
    orders: see rewards/scorers/pairwise.py. kl: the price of leaving the start; 0 is self-play alone, which may circle. average: the
    result is the average of the weights of so large a share of the steps, the last ones; 0: the last policy.

    Departures: the paper's guarantee is for the average of the policies over time. `--plan.average 0.5` averages the weights of the
    second half of the steps, which for a network is not the average of its policies; by default the last policy is the result, and a KL
    of 0.01 to the start, which the paper does not have, keeps it from circling (regularised self-play converges in its last policy,
    arXiv:2312.00886). Rewards are compared among 8 fresh answers; the paper also keeps a queue of older ones. Its judge must be given:
    `--reward FILE.py:FUNCTION` of (prompt, a, b), or any reward r, which judges by sigmoid(k (r_a - r_b)); without one it ends with a
    sentence before anything is loaded. The optimiser is free in the paper; here it is PPO's clip without a std.
    """
    if steps < 1 or n < 2 or kl < 0 or not 0 <= average <= 1:
        raise UserError(
            f"got steps={steps}, n={n}, kl={kl}, average={average}; it takes 1 step, 2 answers to compare, a price of 0 or more, and a "
            "share between 0 and 1"
        )

    def rewards(context: Context) -> WinRate:
        return WinRate(asked_judge(context, k), orders=orders)

    phase = Phase("spo", self_play(n, kl, steps, average), steps, asked_task, rewards=rewards)
    return Plan((phase,), ready=needs_judge("spo-minimaximalist", k))
