"""PRIME: a process reward model that needs no step labels, trained on outcomes as the policy goes, pays each token."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.advantages.pure import pure as per_token
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Phase, Plan, alternate, plan
from posttrain.core.protocols import Policy, Scorer
from posttrain.core.registry import policy_loss, scorer
from posttrain.core.types import Group
from posttrain.losses.aggregate import sequence_mean, token_mean
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Verdict, answers_of

# ---- what answers are worth
# Token rewards of an implicit process reward model: how much likelier a trained model finds a token than its start did.


@scorer(title="Implicit process rewards", paper="arXiv:2412.01981")
class Implicit(BaseScorer):
    """Implicit process rewards: how much likelier a trained model finds each token than its start did.

    r_t = beta (log pi_prm(y_t) - log pi_ref(y_t)), in reward_T;  the outcome is `scorer`'s, also as component `outcome`
    """

    def __init__(self, scorer: Scorer, prm: Policy, reference: Policy, beta: float = 0.05, rows: int = 64) -> None:
        self.inner, self.prm, self.reference, self.beta, self.rows = scorer, prm, reference, beta, rows

    @torch.no_grad()
    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts, out = answers_of(groups), []
        for begin in range(0, len(rollouts), self.rows):
            some = rollouts[begin : begin + self.rows]
            ratio_BT = self.prm.forward(some)["logp_BT"] - self.reference.forward(some)["logp_BT"]
            for r, ratio_T in zip(some, ratio_BT.cpu(), strict=True):
                outcome = NAN if r.reward is None else r.reward
                out.append(Verdict(None, {"outcome": outcome}, self.beta * ratio_T[: len(r)] * r.mask_T))
        return out


# ---- what is minimised


@policy_loss(
    title="Implicit process reward (PRIME)",
    paper="arXiv:2502.01456",
    system="prime",
    reads=("ref_logp_BT", "reward_BT"),
)
def implicit_prm(batch: Batch, beta: float = 0.05, bar: float = 0.5) -> Tensor:
    """Implicit process reward (PRIME): a language model whose log-ratio to its start predicts the outcome.

    L = -log sigma(+-beta sum_t (logp_t - ref_t)), + if R > bar;  then beta (logp_t - ref_t) is the reward of token t
    Every token of an answer carries its loss, so that `sequence_mean` is the mean over answers.
    """
    ratio_BT = torch.where(batch.mask_BT > 0, batch.logp_BT - batch["ref_logp_BT"], 0.0)
    sign_B = torch.where(batch.returns_B > bar, 1.0, -1.0)
    loss_B = -logsigmoid(sign_B * beta * ratio_BT.sum(-1))
    return loss_B.unsqueeze(-1).expand_as(batch.mask_BT)


# ---- the plan


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
    b: what a token of the other answers earns on average.

    Departures: in the paper policy and reward model learn from the same answers at each step; here the model learns
    in its turn from answers that it samples itself, which drift from the policy's, `steps` of each making a round. b
    is what a token of the other answers earns on average; the authors average by answer first, and whiten A over the
    batch. They give the reward model a rate of its own (1e-6 against 5e-7), sample 4 answers per prompt, 8 here, and
    keep prompts of middling accuracy only, which is not done here. beta 0.05 is the paper's.
    """
    if rounds < 1 or steps < 1:
        raise UserError(f"got rounds={rounds}, steps={steps}; each is at least 1")

    def rewards(context: Context) -> Implicit:
        return Implicit(asked_rewards(context), context.role("prm"), context.role("start"), beta)

    judge = Phase("prm", outcome_model(beta), steps, asked_task, role="prm", rewards=asked_rewards, reference="start")
    learn = Phase("policy", paid_by_token(), steps, asked_task, rewards=rewards)
    parts = (Copy("policy", "start"), Copy("policy", "prm"), alternate(judge, learn, times=rounds))
    return Plan(parts)
