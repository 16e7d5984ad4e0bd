"""DR-IRL: a reward learned from demonstrations alone (they must score above the policy's own answers), then GRPO-S, whose
credit is scaled by how hard the prompt is.

Departures: as run this is GRPO on the task's own grade: the scaling needs the components `similarity` and
`demonstration`, which no scorer here gives; without them both factors are 1 and no warning is given. The paper's
rounds of inverse RL, its reward model for each of seven categories of harm, its balanced demonstrations and its text
encoder are not here; `irl_pairs` makes one round's pairs in Python. The forms of the factors were taken from
summaries of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from posttrain.advantages.group import group_mean, group_size
from posttrain.advantages.grpo import grpo as group_relative
from posttrain.core.batch import Batch
from posttrain.core.credit import component
from posttrain.core.method import method
from posttrain.core.protocols import Policy
from posttrain.core.registry import advantage
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.methods.grpo import grpo


@advantage(
    title="GRPO-S (DR-IRL)",
    paper="arXiv:2503.18991",
    base="grpo",
    system="dr-irl",
    laws=("sums_to_zero",),
    reads=("group_B", "reward_BT"),
)
def difficulty_scaled(batch: Batch, tau: float = 1.0, eps: float = 1e-4) -> Tensor:
    """GRPO-S (DR-IRL): GRPO's credit, more of it for prompts whose answers are unlike their demonstration.

    A_i = h m GRPO_i;  h = sigmoid(d) / sigmoid(mean d), d = 1 - similarity of the prompt's answers, mean over prompts;
    m = sigmoid(mean gap of those within tau) / sigmoid(mean gap), gap = r_demonstration - r, within: (gap - mean)^2 <= tau
    The paper has an m for each category of harm; here the batch is one category. Components `similarity` and
    `demonstration`; a factor whose component is not there is 1.
    """
    factor_B = hardness(batch) * responsiveness(batch, tau)
    credit_BT: Tensor = group_relative(batch, eps=eps)
    return credit_BT * factor_B.unsqueeze(-1)


def hardness(batch: Batch) -> Tensor:
    """h, one a row: how far a prompt's answers are from its demonstration, against the other prompts."""
    if "reward:similarity_B" not in batch:
        return torch.ones_like(batch.mask_BT[:, 0])
    group_B, valid_B = batch["group_B"], batch.valid_B
    far_B = group_mean(1 - component(batch, "similarity"), group_B, valid_B)
    share_B = valid_B / group_size(group_B, valid_B).clamp_min(1)  # each prompt counts once
    mean = (far_B * share_B).sum() / share_B.sum().clamp_min(1)
    return torch.sigmoid(far_B) / torch.sigmoid(mean)


def responsiveness(batch: Batch, tau: float) -> Tensor:
    """m, one for the batch: the mean gap without outliers, against the mean of all."""
    if "reward:demonstration_B" not in batch or not bool(batch.valid_B.any()):
        return torch.ones_like(batch.mask_BT[:1, 0])
    gap_N = (component(batch, "demonstration") - batch.returns_B)[batch.valid_B]
    mean = gap_N.mean()
    near_N = gap_N[(gap_N - mean) ** 2 <= tau]
    return torch.sigmoid(near_N.mean() if near_N.numel() else mean) / torch.sigmoid(mean)


def irl_pairs(policy: Policy, prompts: Sequence[Prompt], how: Sampling, seed: int = 0, n: int = 1) -> list[Prompt]:
    """Demonstration against one's own answer, as pairs for a reward model: argmax_r E_demo[r] - E_policy[r], logistic.

    Each prompt's `info["demonstration"]` is chosen, each of n answers of the policy rejected; equal texts are left out.
    """
    made = policy.sample(list(prompts), n, how, seed, -1)
    out = []
    for p, rollouts in zip(prompts, made, strict=True):
        for i, r in enumerate(rollouts):
            if r.text != p.info["demonstration"]:
                info = p.info | {"chosen": p.info["demonstration"], "rejected": r.text}
                out.append(replace(p, id=f"{p.id}#{i}", info=info))
    return out


dr_irl = method(
    grpo.but(name="dr-irl", title="DR-IRL", paper="arXiv:2503.18991", doc=__doc__, advantage=difficulty_scaled)
)
