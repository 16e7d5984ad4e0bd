"""PRIME: a process reward model that needs no step labels, trained on outcomes as the policy goes, pays each token."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.advantages.group import group_size, group_sum
from posttrain.advantages.rloo import rloo
from posttrain.advantages.whiten import batch_whiten
from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.method import Method, Objective
from posttrain.core.plan import Context, Copy, Phase, Plan, plan
from posttrain.core.protocols import Policy, Scorer
from posttrain.core.registry import advantage, policy_loss, scorer, select
from posttrain.core.types import Group
from posttrain.losses.aggregate import sequence_mean, token_mean
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Verdict, answers_of
from posttrain.rollouts.sample import sample
from posttrain.select.valid import reward_of, valid_rollouts

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


# ---- which groups are learned from


@select(title="Accuracy band (PRIME)", paper="arXiv:2502.01456", system="prime")
def accuracy_band(groups: list[Group], low: float = 0.2, high: float = 0.8) -> list[Group]:
    """Accuracy band (PRIME): prompts of middling difficulty: keep a group if low <= mean reward of its answers <= high."""
    scored = [(g, [reward_of(r) for r in valid_rollouts(g)]) for g in groups]
    return [g for g, some in scored if some and low <= sum(some) / len(some) <= high]


# ---- who gets the credit


@advantage(
    name="prime",
    title="PRIME",
    paper="arXiv:2502.01456",
    base="rloo",
    reads=("group_B", "reward_BT"),
)
def token_and_outcome(batch: Batch, outcome: str = "", whiten: bool = True) -> Tensor:
    """PRIME: token rewards still to come against the mean token reward of the others, and the outcome as RLOO has it.

    A_t = sum_{s >= t} (r_s - b) + (R - mean of others' R);  b = mean over the group's other answers of their mean r
    whiten: A over all tokens of the batch, as the authors do. outcome names the component of the reward that is R; without
    it all rewards are r.
    """
    own_BT, group_B, valid_B = batch.mask_BT > 0, batch["group_B"], batch.valid_B
    whole_BT = torch.zeros_like(batch.mask_BT)
    if outcome:
        whole_BT = torch.where(valid_B.unsqueeze(-1), on_last(component(batch, outcome), batch), 0.0)
    r_BT = torch.where(own_BT, batch["reward_BT"] - whole_BT, 0.0)
    mean_B = r_BT.sum(-1) / batch.lengths_B.clamp_min(1)
    b_B = (group_sum(mean_B, group_B) - mean_B) / (group_size(group_B, valid_B) - 1).clamp_min(1)
    above_BT = torch.where(own_BT, r_BT - b_B.unsqueeze(-1), 0.0)
    togo_BT = torch.where(own_BT, above_BT.flip(-1).cumsum(-1).flip(-1), 0.0)
    adv_BT = togo_BT + rloo(batch.but(reward_BT=whole_BT)) if outcome else togo_BT
    return batch_whiten(adv_BT, batch.mask_BT) if whiten else adv_BT


# ---- what is minimised


@policy_loss(
    title="Implicit process reward (PRIME)",
    paper="arXiv:2502.01456",
    system="prime",
    reads=("ref_logp_BT", "reward_BT"),
)
def implicit_prm(batch: Batch, beta: float = 0.05, bar: float = 0.5, outcome: str = "") -> Tensor:
    """Implicit process reward (PRIME): a language model whose log-ratio to its start predicts the outcome.

    L = -log sigma(+-beta sum_t (logp_t - ref_t)), + if R > bar;  then beta (logp_t - ref_t) is the reward of token t
    Every token of an answer carries its loss, so that `sequence_mean` is the mean over answers. outcome names the component
    of the reward that is R; without it R is all that an answer earned.
    """
    ratio_BT = torch.where(batch.mask_BT > 0, batch.logp_BT - batch["ref_logp_BT"], 0.0)
    earned_B = component(batch, outcome) if outcome else batch.returns_B
    sign_B = torch.where(earned_B > bar, 1.0, -1.0)
    loss_B = -logsigmoid(sign_B * beta * ratio_BT.sum(-1))
    return loss_B.unsqueeze(-1).expand_as(batch.mask_BT)


# ---- the plan


def paid_by_token(beta: float = 0.05, n: int = 4) -> Method:
    """PPO's clip without a KL; beside it, from the same answers, the reward model's own loss at twice the rate."""
    loss = implicit_prm.but(beta=beta, outcome="outcome")
    judge = Objective("prm", loss, sequence_mean, grpo.optimiser, grpo.reference, pace=2.0, max_norm=10.0)
    return grpo.but(
        name="prime", title="PRIME", paper="arXiv:2502.01456", doc=__doc__, rollout=sample.but(n=n),
        select=(accuracy_band,), advantage=token_and_outcome.but(outcome="outcome"), aggregate=token_mean, terms=(),
        others=(judge,), rounds=10,
    )  # fmt: skip


@plan(paper="arXiv:2502.01456", title="PRIME")
def prime(steps: int = 60, beta: float = 0.05, n: int = 4) -> Plan:
    """PRIME: at each step the policy's fresh answers are paid token by token by a reward model, which then learns from the
    outcomes of these same answers.

    r_t = beta log(pi_prm / pi_ref);  prm: BCE(sigma(sum_t r_t), outcome);  A_t = sum_{s >= t} (r_s - b) + RLOO(outcome)
    b: the mean token reward of the other answers, each averaged first; A is whitened over the batch. The reward model begins
    as the policy, which is its reference too; prompts whose answers are right in less than a fifth or more than four fifths
    are left out for both, and others asked in their place.

    Departures: the authors ask until a batch of 256 prompts is full, here until 16 are, in at most 10 rounds. Their code divides
    token rewards by their largest sum to go in the batch before they are whitened, and multiplies a token's own reward by
    n / (n - 1), which the paper's formula has not; here the formula. Outcomes must be 0 and 1. One pass, clip 0.2, 4 answers, no KL, beta 0.05, twice the policy's rate and norm 10 for the reward model
    are the authors'.
    """
    if steps < 1 or n < 2:
        raise UserError(f"got steps={steps}, n={n}; a step is needed, and 2 answers to compare")

    def rewards(context: Context) -> Implicit:
        return Implicit(asked_rewards(context), context.role("prm"), context.role("start"), beta)

    learn = Phase("prime", paid_by_token(beta, n), steps, asked_task, rewards=rewards)
    return Plan((Copy("policy", "start"), Copy("policy", "prm"), learn))
