"""PAR: PPO on the reward model's own preference over the start policy's answer, a bounded reward that is hard to hack."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import members, on_last
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Phase, Plan, plan
from posttrain.core.protocols import Policy, Scorer
from posttrain.core.registry import scorer, shaping
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt
from posttrain.methods.from_pairs import paid_somehow, reward_phase
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

# ---- what answers are worth
# Rewards beside those of a reference policy's own answers to the same prompts.


@scorer(title="Beside a reference's answers", paper="arXiv:2502.18770")
class Referenced(BaseScorer):
    """Beside a reference's answers: the reward of `scorer`, and what m answers of a reference policy earn.

    They are the components reference0, reference1... They are drawn by the prompt's identity and kept, so each prompt is answered and scored once, and a resumed run
    finds the same. An answer none of whose references could be scored is masked.
    """

    def __init__(self, scorer: Scorer, policy: Policy, how: Sampling, m: int = 1, seed: int = 0) -> None:
        self.inner, self.policy, self.how, self.m, self.seed = scorer, policy, how, m, seed
        self.known: dict[str, list[float]] = {}

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        self.ask([g.prompt for g in groups])
        found = [self.known[r.prompt.id] for r in answers_of(groups)]
        return [
            Verdict(
                math.nan if all(math.isnan(x) for x in some) else None,
                {f"reference{i}": x for i, x in enumerate(some)},
            )
            for some in found
        ]

    def ask(self, prompts: list[Prompt]) -> None:
        """Answer and score what was not asked before."""
        fresh = list({p.id: p for p in prompts if p.id not in self.known}.values())
        if not fresh:
            return
        made = self.policy.sample(fresh, self.m, self.how, self.seed, -1)
        groups = [Group(p, rollouts) for p, rollouts in zip(fresh, made, strict=True)]
        self.inner.score(groups)
        for g in groups:
            self.known[g.prompt.id] = [math.nan if r.reward is None else r.reward for r in g.rollouts]


# ---- what changes the rewards


@shaping(title="PAR", paper="arXiv:2502.18770", reads=("group_B", "reward_BT"))
def preference_as_reward(batch: Batch, k: float = 1.0, against: str = "siblings") -> Tensor:
    """Preference as reward (PAR): how likely the reward model finds the answer better than a reference answer.

    R = 1/M sum_m sigmoid(k (r - r_ref_m)): bounded, steepest at the reference, flat far above it, where hacking lives
    against="reference": the components `reference...` of the batch, rewards of answers of the start policy to the same
    prompt (the paper; the plan `par`). against="siblings": the group's other answers stand in for them.
    """
    if against not in ("reference", "siblings"):
        raise UserError(f"PAR compares with 'reference' or 'siblings', not {against!r}")
    r_B = batch.returns_B
    if against == "reference":
        if not any(name.startswith("reward:reference") for name in batch):
            raise UserError("no reference rewards in the batch; score with Referenced, or against='siblings'")
        ref_MB = members(batch, "reference")
        return on_last(torch.nanmean(torch.sigmoid(k * (r_B - ref_MB)), 0), batch)
    group_B, valid_B = batch["group_B"], batch.valid_B
    other_BB = (group_B.unsqueeze(0) == group_B.unsqueeze(1)) & valid_B & ~torch.eye(len(r_B), dtype=torch.bool)
    won_BB = torch.where(other_BB, torch.sigmoid(k * (r_B.unsqueeze(1) - r_B.unsqueeze(0))), 0.0)
    alone_B = other_BB.sum(1) == 0  # nobody to compare with: as good as itself
    return on_last(torch.where(alone_B, 0.5, won_BB.sum(1) / other_BB.sum(1).clamp_min(1)), batch)


# ---- the plan


def shaped(k: float = 1.0, beta: float = 0.005) -> Method:
    """PPO whose reward is sigmoid(k (r - r_ref)), less beta KL."""
    return ppo.but(
        name="par", title="PAR", paper="arXiv:2502.18770", doc=__doc__,
        shaping=(preference_as_reward.but(k=k, against="reference"), kl_in_reward.but(coef=beta)),
    )  # fmt: skip


@plan(paper="arXiv:2502.18770", title="PAR")
def par(steps: int = 60, m: int = 1, k: float = 1.0, beta: float = 0.005, pairs: str = "", epochs: float = 1.0) -> Plan:
    """PAR: PPO whose reward is the preference for an answer over m answers of the start policy to the same prompt.

    R = 1/m sum_j sigmoid(k (r - r_ref_j)) - beta KL;  r: the score of a reward model, in the log-odds it was trained in
    The reward model is named (--reward runs/NAME, a Hugging Face folder), or trained first from a file of preferences
    (pairs=, `epochs` passes, from `--model`); without either it does not begin.

    Departures: none known in the shaping: m = 1, k = 1 and a KL price of 0.005 are the paper's. Its start is a fine-tuned
    model; here `--model` as it is. 8 answers per prompt and the critic are `ppo`'s. `--reward task` compares the task's
    own grade, which is no log-odds.
    """
    if steps < 1 or m < 1:
        raise UserError(f"got steps={steps}, m={m}; it takes 1 step and 1 reference answer at least")

    def rewards(context: Context) -> Referenced:
        c = context.config
        payer = RewardModel(context.role("reward_model")) if pairs else asked_rewards(context)
        return Referenced(payer, context.role("start"), c.sampling, m, c.seed)

    parts = (
        Copy("policy", "start"),
        *reward_phase(pairs, epochs),
        Phase("par", shaped(k, beta), steps, asked_task, rewards=rewards, reference="start"),
    )
    needs = lambda c: paid_somehow(c, "par", pairs)  # noqa: E731
    return Plan(parts, ready=needs, uses=("task",) if pairs else ("task", "reward"))
