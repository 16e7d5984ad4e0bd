"""OREAL: imitate right answers, blame wrong ones by their leave-one-out share, both weighed token by token by a reward
model that learned from outcomes which tokens matter; held by a light KL.

The token-level reward model is the critic's network here. Of 16 answers per prompt it keeps one right and one wrong: were
there more of one kind, every token would speak for it.

Departures: the paper gives the token-level reward model a learning rate of its own, freezes the policy for the first
10 of its 90 steps while that model warms up, and repeats hard prompts up to six times; none of this is here. The
model starts at 0, where the weight of every token but the last is 0, so that at first the last token alone is
trained. Its loss is averaged over tokens, so that long answers count more than in the paper. Rewards must be 0 and 1,
or set `bar`. 16 answers, one right and one wrong kept, KL 0.01 and the factor 0.5 for wrong ones are the released
settings.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.advantages.rloo import rloo
from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import advantage, select, term
from posttrain.core.types import Group, Rollout
from posttrain.losses.aggregate import token_mean
from posttrain.losses.policy.reinforce import reinforce
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.rollouts.sample import sample
from posttrain.select.valid import place, reward_of, valid_rollouts

# ---- which groups are learned from


@select(title="One of each (OREAL)", paper="arXiv:2502.06781", system="oreal")
def one_of_each(groups: list[Group], bar: float | None = None) -> list[Group]:
    """One of each (OREAL): of each group one right answer (R > bar) and one wrong, so that a model of outcomes sees as many
    of both; a group without either goes.

    bar: midway between the group's best and worst unless given, which is 0.5 where answers are right (1) or wrong (0)
    They keep what their whole group said of them as the component `leave_one_out`: R_i - mean of the others' R
    """
    kept = []
    for group in groups:
        scored = valid_rollouts(group)
        rewards = [reward_of(r) for r in scored] or [0.0]
        middle = (max(rewards) + min(rewards)) / 2 if bar is None else bar
        sides = [[r for r in scored if (reward_of(r) > middle) == right] for right in (True, False)]
        if all(sides):
            two = group.only([place(group, side[0]) for side in sides])
            kept.append(replace(two, rollouts=[_told(r, scored) for r in two.rollouts]))
    return kept


def _told(rollout: Rollout, scored: list[Rollout]) -> Rollout:
    """The same answer with its reward above the mean of the others'."""
    others = [reward_of(r) for r in scored if r is not rollout]
    return replace(rollout, rewards=rollout.rewards | {"leave_one_out": reward_of(rollout) - sum(others) / len(others)})


# ---- who gets the credit


@advantage(
    name="oreal",
    title="OREAL",
    paper="arXiv:2502.06781",
    base="rloo",
    laws=("groups_are_separate",),
    reads=("group_B", "old_value_after_BT", "reward_BT"),
)
def token_weighted(
    batch: Batch, negative: float = 0.5, bar: float = 0.5, weigh: bool = True, floor: float = 0.0
) -> Tensor:
    """OREAL: imitate right answers, push away from wrong ones by their leave-one-out share, token by token.

    right (R > bar): A_t = omega+_t;  wrong: A_t = negative (R - mean of others) omega-_t, which is -negative p when p of the
    others are right: blame reshaped so that imitation of the best of n and it add up
    omega+ = max(2 sigma(w_t) - 1, floor), omega- = max(1 - 2 sigma(w_t), floor);  w_t: what the token-level reward model says
    of the state that token t leads to, the last token as any other. floor=0 is the paper's. weigh=False: every weight is 1.
    Where `one_of_each` kept two of a group, the others' mean is its whole group's.
    """
    own_BT = batch.mask_BT > 0
    right_BT = (batch.returns_B > bar).unsqueeze(-1)
    whole_B = batch.get("reward:leave_one_out_B")
    above_BT = rloo(batch) if whole_B is None else broadcast_to_tokens(whole_B.to(batch.mask_BT), batch)
    credit_BT = torch.where(right_BT & own_BT, 1.0, negative * above_BT)
    if not weigh:
        return torch.where(own_BT, credit_BT, 0.0)
    sure_BT = 2 * torch.sigmoid(torch.where(own_BT, batch["old_value_after_BT"], 0.0)) - 1
    omega_BT = torch.where(right_BT, sure_BT, -sure_BT).clamp_min(floor)
    return torch.where(own_BT, credit_BT * omega_BT, 0.0)


# ---- what is added to the loss


@term(
    title="Token-level reward model (OREAL)",
    paper="arXiv:2502.06781",
    system="oreal",
    reads=("reward_BT", "value_after_BT"),
)
def token_outcome(batch: Batch, coef: float = 1.0, bar: float = 0.5, per: str = "answer") -> Tensor:
    """Token-level reward model (OREAL): the critic's head learns which tokens speak for a right answer, from outcomes alone.

    L = -coef log sigma(+-mean_t w_t), + if R > bar;  w_t: the value of the state that token t leads to;  a mean over answers
    Every token of an answer carries its loss, and with per="answer" it counts once, however long it is.
    """
    own_BT = batch.mask_BT > 0
    mean_B = torch.where(own_BT, batch["value_after_BT"], 0.0).sum(-1) / own_BT.sum(-1).clamp_min(1)
    sign_B = torch.where(batch.returns_B > bar, 1.0, -1.0)
    return (-coef * logsigmoid(sign_B * mean_B)).unsqueeze(-1) * own_BT


# ---- the method

oreal = method(
    grpo.but(
        name="oreal", title="OREAL", paper="arXiv:2502.06781", doc=__doc__,
        rollout=sample.but(n=16), select=(one_of_each,), advantage=token_weighted, loss=reinforce, aggregate=token_mean,
        terms=(token_outcome, kl.but(coef=0.01)),
    )
)  # fmt: skip
