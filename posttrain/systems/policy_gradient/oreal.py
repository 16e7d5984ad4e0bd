"""OREAL: imitate right answers, blame wrong ones by their leave-one-out share, both weighed token by token by a reward
model that learned from outcomes which tokens matter; held by a light KL.

The token-level reward model is the critic's network: it begins as a copy of the policy with a head at 0, learns at 4 times
the policy's rate, and learns alone for the first 10 steps (at most a quarter of the run). Of 16 answers per prompt it keeps
one right and one wrong: were there more of one kind, every token would speak for it. Hard prompts come up to six times as
often as others (`difficulty_balance`), by the column `pass_rate` of the rows, or by how often the policy itself was right.

Departures: the released code reads the score of token t before that token and weighs by the mean of the scores so far; here,
as the paper writes it, w_t has seen token t and weighs it alone. That code multiplies right answers by their leave-one-out
share and divides the losses of right and wrong answers each by their own tokens; here right answers weigh 1, and all are
divided by all tokens. Its head is drawn at random, here 0. Its rates (policy 5e-7, token model 2e-6) fall along a cosine, here
the rates suit the size and fall linearly; it decays weights by 0.01, here not. It samples with top-p 0.9 and 64 prompts per
step, here 1.0 and 16, and without a column `pass_rate` it would not start. Rewards must be 0 and 1, or set `bar`: a step whose answers
all lie on one side of it ends the run. 16 answers,
one right and one wrong kept, 10 steps alone, 4 times the rate, KL 0.01, the factor 0.5 for wrong ones and the repeats are the
released settings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.advantages.rloo import rloo
from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.critic import CriticSettings
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import Environment, Policy
from posttrain.core.registry import advantage, prompt_sampler, select, term
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.base import size_of
from posttrain.losses.aggregate import token_mean
from posttrain.losses.policy.reinforce import reinforce
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.prompts.uniform import copy_of, uniform
from posttrain.rollouts.sample import sample
from posttrain.select.valid import place, reward_of, valid_rollouts

REPEATS = ((0.0, 0.2, 6), (0.2, 0.4, 4), (0.4, 0.6, 4), (0.6, 0.8, 2))  # of the released settings
# ---- which prompts come next


@prompt_sampler(title="Difficulty balance (OREAL)", paper="arXiv:2502.06781", system="oreal", base="uniform")
class difficulty_balance:
    """Difficulty balance (OREAL): in each pass hard prompts come several times, those that are nearly always right not at all.

    repeats: (pass rate from, to, times). The rate of a prompt is its column `pass_rate`, else the share of right answers
    (R > bar) when it was last asked; a prompt of which nothing is known comes once. An endless task is drawn as it comes.
    """

    def __init__(self, repeats: tuple[tuple[float, float, int], ...] = REPEATS, bar: float = 0.5) -> None:
        self.repeats, self.bar = repeats, bar
        self.rates: dict[str, float] = {}
        self.queue: list[int] = []
        self.epoch = 0

    def start(self, env: Environment, seed: int) -> None:
        self.env, self.seed, self.size = env, seed, size_of(env, "train")
        self.endless = uniform()
        self.endless.start(env, seed)

    def times(self, prompt: Prompt) -> int:
        """How often a prompt comes in a pass."""
        rate = prompt.info.get("pass_rate", self.rates.get(prompt.id))
        return 1 if rate is None else next((k for low, high, k in self.repeats if low <= float(rate) < high), 0)

    def propose(self, n: int, step: int, policy: Policy | None = None) -> list[Prompt]:
        """The n prompts of a step; a prompt that comes twice has another identity the second time."""
        if not self.size:
            fresh: list[Prompt] = self.endless.propose(n, step)
            return fresh
        while len(self.queue) < n:
            self._next_pass()
        chosen, self.queue = [self.env.prompt(i, "train") for i in self.queue[:n]], self.queue[n:]
        return [copy_of(p, sum(q.id == p.id for q in chosen[:k])) for k, p in enumerate(chosen)]

    def _next_pass(self) -> None:
        order = [i for i in range(self.size) for _ in range(self.times(self.env.prompt(i, "train")))]
        order = order or list(range(self.size))  # all are too easy: the selection says what is left to learn
        rng.python(self.seed, "difficulty", self.epoch).shuffle(order)
        self.queue, self.epoch = self.queue + order, self.epoch + 1

    def observe(self, groups: list[Group]) -> None:
        """How often each prompt was answered right."""
        for g in groups:
            if scored := valid_rollouts(g):
                self.rates[g.prompt.id.partition("#")[0]] = sum(reward_of(r) > self.bar for r in scored) / len(scored)

    def state_dict(self) -> dict[str, Any]:
        return {"rates": dict(self.rates), "queue": list(self.queue), "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rates, self.queue, self.epoch = dict(state["rates"]), list(state["queue"]), state["epoch"]


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
    if whole_B is not None:
        on_both_sides(batch.returns_B[batch.valid_B], bar)
    above_BT = rloo(batch) if whole_B is None else broadcast_to_tokens(whole_B.to(batch.mask_BT), batch)
    credit_BT = torch.where(right_BT & own_BT, 1.0, negative * above_BT)
    if not weigh:
        return torch.where(own_BT, credit_BT, 0.0)
    sure_BT = 2 * torch.sigmoid(torch.where(own_BT, batch["old_value_after_BT"], 0.0)) - 1
    omega_BT = torch.where(right_BT, sure_BT, -sure_BT).clamp_min(floor)
    return torch.where(own_BT, credit_BT * omega_BT, 0.0)


def on_both_sides(returns_N: Tensor, bar: float) -> None:
    """Where one right and one wrong answer of each prompt were kept, some are above the bar and some are not, or it is the wrong bar."""
    if len(returns_N) and len((returns_N > bar).unique()) == 1:
        least, most = float(returns_N.min()), float(returns_N.max())
        raise UserError(
            f"oreal learns from right answers and from wrong ones, and calls all of a step {'right' if least > bar else 'wrong'}: they earned "
            f"{least:g} to {most:g}, its bar is {bar:g}; pay 1 and 0, or say where right begins: --select 'one-of-each(bar=X)' "
            "--advantage 'oreal(bar=X)' --terms 'token-outcome(bar=X) + kl(coef=0.01)' --curriculum 'difficulty-balance(bar=X)'"
        )


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
        prompts=difficulty_balance, critic=CriticSettings(pace=4.0, warmup=10),
        rollout=sample.but(n=16), select=(one_of_each,), advantage=token_weighted, loss=reinforce, aggregate=token_mean,
        terms=(token_outcome, kl.but(coef=0.01)),
    )
)  # fmt: skip
