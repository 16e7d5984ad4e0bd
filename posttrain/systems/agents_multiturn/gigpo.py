"""GiGPO: GRPO for agents, with a second comparison inside the first: each step against those from the same state.

Departures: the paper's anchor states are those of an environment (a page, a room); of a plain text here, the last
whole phrase stands for the state. It takes 0.1 off for an invalid action, which is left to the environment here. Both
comparisons are divided by their std, as in the authors' script for ALFWorld; neither in their other mode (for WebShop):
`--advantage "gigpo(std=False)"`. gamma 0.95 per step, omega 1, KL 0.01 and 8 answers per prompt are theirs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens, group_mean, group_size, group_std, group_sum
from posttrain.advantages.states import nodes
from posttrain.advantages.whiten import group_centre, group_whiten
from posttrain.core.batch import Batch
from posttrain.core.credit import split_steps, token_ends
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import advantage, rollout
from posttrain.core.types import Group, Rollout
from posttrain.losses.regularisers.kl import kl
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
    gamma: float = 0.95,
    std: bool = True,
    baseline: str = "group",
) -> Tensor:
    """GiGPO: beside the comparison of whole answers, each step is compared with the steps taken from the same state.

    A_t = episode A^E + omega A^S;  A^E = (R - mean_group R) / F;  A^S = (G - mean over steps from that state) / F
    G = sum gamma^k r over this step and those after it, k steps ahead; F: the std of each comparison, or 1 with std=False.
    A step is a run of own actions in one state; a state that comes again in the group counts wherever it does. States:
    `batch["state_BT"]` where an environment numbers them, otherwise the same prefix, and each action is a step.
    baseline="others" leaves the step itself out of its mean (unbiased); a state seen once gets 0, with "others" its G.
    """
    if baseline not in ("group", "others"):
        raise UserError(f"a step is compared with the 'group' or with 'others', not {baseline!r}")
    own_BT, group_B, state_BT = batch.mask_BT > 0, batch["group_B"], states(batch)
    begins_BT, togo_BT = returns_of_steps(batch, state_BT, gamma)
    x_N, first_N, state_N = togo_BT.flatten(), begins_BT.flatten(), state_BT.flatten()
    if baseline == "group":
        step_N = x_N - group_mean(x_N, state_N, first_N)
    else:
        rest_N = group_sum(torch.where(first_N, x_N, 0.0), state_N) - x_N
        step_N = x_N - rest_N / (group_size(state_N, first_N) - 1).clamp_min(1)
    whole_B = group_centre(batch.returns_B, group_B, batch.valid_B)
    if std:
        step_N = step_N / (group_std(x_N, state_N, first_N) + 1e-4)
        whole_B = group_whiten(batch.returns_B, group_B, batch.valid_B, 1e-4)
    step_BT = torch.where(own_BT, step_N.view_as(togo_BT), 0.0)
    return episode * broadcast_to_tokens(whole_B, batch) + omega * step_BT


def returns_of_steps(batch: Batch, state_BT: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Where steps begin (B, T), and at every action what its step and the later ones earn, discounted by gamma per step."""
    own_BT, reward_BT = batch.mask_BT > 0, torch.nan_to_num(batch["reward_BT"])
    T = own_BT.shape[1]
    begins_BT, togo_BT = torch.zeros_like(own_BT), torch.zeros_like(batch.mask_BT)
    here_B = torch.full_like(state_BT[:, 0], -1)  # the state of the step that goes on
    for t in range(T):
        begins_BT[:, t] = own_BT[:, t] & (state_BT[:, t] != here_B)
        here_B = torch.where(own_BT[:, t], state_BT[:, t], -1)  # an observation ends a step
    step_B, later_B = torch.zeros_like(togo_BT[:, 0]), torch.zeros_like(togo_BT[:, 0])
    for t in reversed(range(T)):  # step_B: what the step has earned from here to its end; later_B: the steps after it
        step_B = step_B + reward_BT[:, t]
        togo_BT[:, t] = step_B + later_B
        later_B = torch.where(begins_BT[:, t], gamma * togo_BT[:, t], later_B)
        step_B = torch.where(begins_BT[:, t], 0.0, step_B)
    for t in range(1, T):  # all actions of a step have what its first one has
        togo_BT[:, t] = torch.where(begins_BT[:, t], togo_BT[:, t], togo_BT[:, t - 1])
    return begins_BT, togo_BT


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
        rollout=anchored, advantage=steps_and_episodes, terms=kl.but(coef=0.01, kind="k3"),
    )
)  # fmt: skip
