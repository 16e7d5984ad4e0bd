"""MRT: GRPO that also pays each piece of a thought for what it adds to the chance of answering right at once, so that no
part of the budget is wasted: the regret over the tokens falls, not only the error at the end.

Departures: the paper samples answers from each prefix to measure progress; here it is the likelihood of the gold
answer's exact text, so that a right answer put in other words counts as wrong. Its episodes are stretches of
backtracking or search, here sentences; its continuations from prefixes of earlier answers and its form by
self-training (STaR) are not here. Progress is measured only where an answer itself opens `<think>`: without that tag
(a template that opens it, a model without one) this is GRPO, and no warning is given. Rows must have a gold answer.
alpha 1 and GRPO's KL of 0.04 are this package's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.group import group_sum
from posttrain.advantages.grpo import grpo as group_relative
from posttrain.core.batch import Batch
from posttrain.core.credit import split_steps, token_ends
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import Policy, RolloutRequest
from posttrain.core.registry import advantage, rollout
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.methods.grpo import grpo
from posttrain.rollouts.sample import sample

# ---- how answers are made

Probe = Callable[[Any, Rollout], list[float]]  # (policy, answer) -> for each token, the progress of its piece


@rollout(name="mrt", title="MRT", paper="arXiv:2503.07572", base="sample")
def probed(ask: RolloutRequest, n: int = 8, probe: Probe | None = None,
) -> list[Group]:  # fmt: skip
    """MRT: sample, and for each piece of a thought note by how much it raised the chance of answering right at once.

    p_j = J(z_0..j) - J(z_0..j-1);  J: the chance of the gold answer if the thought were closed here, read off the policy's
    own probabilities (the paper samples such answers);  each token of piece j carries p_j, the others and the last 0
    """
    groups = sample(ask, n=n)
    for r in (r for g in groups for r in g.rollouts):
        gain_T = torch.tensor((probe or progress)(ask.policy, r))
        gain_T[-1:] = 0.0  # the outcome's place
        r.set_stream("reward", gain_T)
    return groups


@torch.no_grad()
def progress(policy: Policy, r: Rollout, level: str = "sentence") -> list[float]:
    """Each token's p: pieces are sentences between <think> and </think>, the gold answer is forced after each."""
    if not isinstance(r.prompt.answer, str):
        raise UserError(f"prompt {r.prompt.id!r} has no gold answer; MRT measures progress towards it")
    head, opened, rest = r.text.partition("<think>")
    spans = split_steps(rest.partition("</think>")[0], level) if opened else []
    if not spans:
        return [0.0] * len(r)
    thoughts = ["", *[rest[:end] for _, end in spans]]
    J = forced(policy, r.prompt, [f"{head}<think>{z}</think>" for z in thoughts])
    start = len(head) + len("<think>")
    pieces = [(start + a, start + b, J[j + 1] - J[j]) for j, (a, b) in enumerate(spans)]
    ends = token_ends(policy.decode, r.actions)
    return [next((p for a, b, p in pieces if a < end <= b), 0.0) for end in ends]


def forced(policy: Policy, prompt: Prompt, heads: list[str]) -> list[float]:
    """The chance that the policy, having written each head, goes on with the gold answer and ends."""
    whole = [policy.written(prompt, head + prompt.answer) for head in heads]
    more = [len(w) - len(policy.written(prompt, head)) + 1 for w, head in zip(whole, heads, strict=True)]
    logp_BT = policy.forward(whole)["logp_BT"].cpu()
    return [
        float(logp_BT[b, len(w) - k : len(w)].sum().exp()) for b, (w, k) in enumerate(zip(whole, more, strict=True))
    ]


# ---- who gets the credit


@advantage(
    name="mrt",
    title="MRT",
    paper="arXiv:2503.07572",
    base="grpo",
    laws=("shift_invariant", "groups_are_separate"),
    reads=("group_B", "reward_BT"),
)
def by_progress(batch: Batch, alpha: float = 1.0) -> Tensor:
    """MRT: an answer's credit among its siblings, plus what each piece of its thought added to the chance of being right.

    A_t = GRPO(outcome) + alpha (p_t - mean p);  p_t the progress of the piece that token t belongs to, mean over the
    group's tokens;  the reward on an answer's last own token is its outcome, those before it are p (as the rollout `mrt`
    puts them). Progress counts where it is made and is not summed to what is to come: each piece is to lower the regret.
    """
    reward_BT, own_BT = batch["reward_BT"], batch.mask_BT > 0
    number_BT = torch.where(own_BT, torch.arange(own_BT.shape[1], device=own_BT.device), -1)
    last_BT = own_BT & (number_BT == number_BT.amax(-1, keepdim=True))
    thought_BT = (own_BT & ~last_BT).to(reward_BT)
    p_BT = torch.where(thought_BT > 0, reward_BT, 0.0)
    group_B = batch["group_B"]
    mean_B = group_sum(p_BT.sum(-1), group_B) / group_sum(thought_BT.sum(-1), group_B).clamp_min(1)
    outcome_BT = group_relative(batch.but(reward_BT=torch.where(last_BT, reward_BT, 0.0)))
    return outcome_BT + alpha * (p_BT - mean_B.unsqueeze(-1)) * batch.mask_BT


# ---- the method

mrt = method(
    grpo.but(name="mrt", title="MRT", paper="arXiv:2503.07572", doc=__doc__, rollout=probed, advantage=by_progress)
)
