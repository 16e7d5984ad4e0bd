"""GiGPO: GRPO for agents, with a second comparison inside the first: each step against those from the same state.

Departures: the paper's anchor states are those of an environment (a page, a room); of a plain text here, the last
whole phrase stands for the state. It discounts steps by 0.95, has a KL of 0.01 and punishes invalid actions; here
gamma is 1, the KL is GRPO's 0.04 and nothing is punished. Steps are divided by F = 1, one of its two choices
(`--advantage "gigpo(std=True)"`). omega 1 and 8 answers per prompt are the paper's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens, group_mean, group_size, group_std, group_sum
from posttrain.advantages.states import nodes
from posttrain.advantages.whiten import group_whiten
from posttrain.core.batch import Batch
from posttrain.core.credit import split_steps, token_ends
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import advantage, rollout
from posttrain.core.types import Group, Rollout
from posttrain.methods.grpo import grpo
from posttrain.rollouts.sample import sample

# ---- how answers are made


@rollout(title="Anchor states (GiGPO)", paper="arXiv:2505.10978", base="sample", system="gigpo")
def anchored(ask: RolloutRequest, n: int = 8, level: str = "phrase"
) -> list[Group]:  # fmt: skip
    """Anchor states (GiGPO): sample, and say of each token in which state it was written, so that steps can be compared.

    The state is the last whole step of the text (its words, not its place), the prompt itself before the first: answers that
    have just said the same stand in the same state, whatever way they came. level: word, phrase, sentence or line. An
    environment with states of its own tells them instead: `Rollout.info["states"]`, one key an action.
    """
    groups = sample(ask, n=n)
    for r in (r for g in groups for r in g.rollouts):
        if "states" not in r.info:
            r.info["states"] = last_steps(
                r, token_ends(ask.policy.decode, r.actions, r.turns[-1].observation.lead), level
            )
    return groups


def last_steps(r: Rollout, ends: list[int], level: str) -> list[str]:
    """For each token, the last step of the text that was whole before it; "" where there is none."""
    steps = [(end, " ".join(r.text[start:end].lower().split())) for start, end in split_steps(r.text, level)]
    starts = [0, *ends[:-1]]
    return [next((said for end, said in reversed(steps) if end <= start), "") for start in starts]


# ---- who gets the credit


@advantage(
    name="gigpo",
    title="GiGPO",
    paper="arXiv:2505.10978",
    base="grpo",
    laws=("groups_are_separate",),
    reads=("group_B", "reward_BT", "token_BT"),
)
def steps_and_episodes(
    batch: Batch,
    omega: float = 1.0,
    episode: float = 1.0,
    gamma: float = 1.0,
    std: bool = False,
    baseline: str = "group",
) -> Tensor:
    """GiGPO: beside the comparison of whole answers, each step is compared with the steps taken from the same state.

    A_t = episode A^E + omega A^S;  A^E: GRPO's;  A^S = (G_t - mean over steps from that state) / F;  G_t = sum gamma^k r
    F = 1, or the std with std=True. States: `batch["state_BT"]` (B, T) where an environment numbers them, so that a
    state counts wherever it comes again in the group; otherwise the same prefix. baseline="others" leaves the step itself
    out of its mean (unbiased); a state seen once gets 0, with "others" its G_t.
    """
    if baseline not in ("group", "others"):
        raise UserError(f"a step is compared with the 'group' or with 'others', not {baseline!r}")
    own_BT, group_B = batch.mask_BT > 0, batch["group_B"]
    togo_BT, later_B = torch.zeros_like(batch.mask_BT), torch.zeros_like(batch.mask_BT[:, 0])
    for t in reversed(range(own_BT.shape[1])):
        reward_B = torch.nan_to_num(batch["reward_BT"][:, t])
        later_B = torch.where(own_BT[:, t], reward_B + gamma * later_B, reward_B + later_B)
        togo_BT[:, t] = later_B
    x_N, own_N, state_N = togo_BT.flatten(), own_BT.flatten(), states(batch).flatten()
    count_N = group_size(state_N, own_N)
    if baseline == "group":
        step_N = x_N - group_mean(x_N, state_N, own_N)
    else:
        step_N = x_N - (group_sum(torch.where(own_N, x_N, 0.0), state_N) - x_N) / (count_N - 1).clamp_min(1)
    if std:
        step_N = step_N / (group_std(x_N, state_N, own_N) + 1e-4)
    whole_B = group_whiten(batch.returns_B, group_B, batch.valid_B, 1e-4)
    step_BT = torch.where(own_BT, step_N.view_as(togo_BT), 0.0)
    return episode * broadcast_to_tokens(whole_B, batch) + omega * step_BT


def states(batch: Batch) -> Tensor:
    """A number for the state before each action (B, T), no two groups sharing one."""
    if "state_BT" not in batch:
        node_BT = nodes(batch)[:, :-1]
        key_BT2 = torch.stack([node_BT, torch.arange(node_BT.shape[1]).expand_as(node_BT).to(node_BT)], -1)
    else:
        state_BT = batch["state_BT"][:, : batch.mask_BT.shape[1]]
        key_BT2 = torch.stack([state_BT, batch["group_B"].unsqueeze(-1).expand_as(state_BT)], -1)
    index_N: Tensor = torch.unique(key_BT2.flatten(0, 1), dim=0, return_inverse=True)[1]
    return index_N.view(key_BT2.shape[:2])


# ---- the method

gigpo = method(
    grpo.but(
        name="gigpo", title="GiGPO", paper="arXiv:2505.10978", doc=__doc__,
        rollout=anchored, advantage=steps_and_episodes,
    )
)  # fmt: skip
