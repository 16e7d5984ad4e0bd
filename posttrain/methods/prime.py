"""PRIME: a process reward model that needs no step labels, trained on outcomes as the policy goes, pays each token."""

from __future__ import annotations

from posttrain.advantages.pure import pure as per_token
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Phase, Plan, alternate, plan
from posttrain.losses.aggregate import sequence_mean, token_mean
from posttrain.losses.policy.implicit_prm import implicit_prm
from posttrain.methods.asked import asked_rewards, asked_task
from posttrain.methods.grpo import grpo
from posttrain.rewards.scorers.implicit import Implicit


def paid_by_token() -> Method:
    """PPO's clip; the outcome as RLOO has it, token rewards to come against those of the others, and no KL."""
    return grpo.but(
        name="prime", title="PRIME", paper="arXiv:2502.01456", doc=__doc__,
        advantage=per_token.but(outcome="outcome"), aggregate=token_mean, terms=(),
    )  # fmt: skip


def outcome_model(beta: float = 0.05) -> Method:
    """The reward model's own learning: right or wrong, from the sum of its log-ratios."""
    return grpo.but(name="implicit-prm", loss=implicit_prm.but(beta=beta), aggregate=sequence_mean, terms=())


@plan(paper="arXiv:2502.01456", title="PRIME")
def prime(rounds: int = 10, steps: int = 4, beta: float = 0.05) -> Plan:
    """PRIME: in turns, the reward model learns from outcomes of fresh answers, and the policy from its token rewards.

    r_t = beta log(pi_prm / pi_ref);  prm: BCE(sigma(sum_t r_t), outcome);  A_t = sum_{s >= t} (r_s - b) + RLOO(outcome)
    In the paper both learn from the same answers at each step; here the model learns from answers of its own in its turn:
    those of its own distribution, which starts as the policy's, and `steps` of each make a round.
    b: what a token of the other answers earns on average; the authors average by answer first, and whiten A over the batch.
    """
    if rounds < 1 or steps < 1:
        raise UserError(f"got rounds={rounds}, steps={steps}; each is at least 1")

    def rewards(context: Context) -> Implicit:
        return Implicit(asked_rewards(context), context.role("prm"), context.role("start"), beta)

    judge = Phase("prm", outcome_model(beta), steps, asked_task, role="prm", rewards=asked_rewards, reference="start")
    learn = Phase("policy", paid_by_token(), steps, asked_task, rewards=rewards)
    parts = (Copy("policy", "start"), Copy("policy", "prm"), alternate(judge, learn, times=rounds))
    options = {"rounds": rounds, "steps": steps, "beta": beta}
    return Plan("prime", parts, "PRIME", "arXiv:2502.01456", prime.__doc__ or "", options)
