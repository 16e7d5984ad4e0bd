"""GRPO-lambda: GRPO in which only the groups that are solved best, a fixed share, are paid for being short; the others
learn from right and wrong alone, so that accuracy does not collapse.

Departures: none known in the reward (the best fifth of the groups, alpha 0.2). GRPO's KL of 0.04 is kept. 8 answers
per prompt and 16 prompts, of which a fifth is 4 groups, are this package's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posttrain.advantages.group import group_mean, group_std
from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.registry import shaping
from posttrain.methods.grpo import grpo


@shaping(name="grpo_lambda", title="GRPO-lambda", paper="arXiv:2505.18086", reads=("group_B", "reward_BT"))
def short_where_solved(batch: Batch, top: float = 0.2, alpha: float = 0.2, outcome: str = "reward") -> Tensor:
    """GRPO-lambda: right answers pay for their length only in the groups that the policy solves best.

    R <- R - alpha sigmoid((n - mean n) / std n) for right answers in the top share of groups by their rate of right ones;
    mean and std over the group's right answers. Everything else keeps its plain reward: a group whose accuracy falls
    drops out of the top and learns to be right again. top=1 is the length penalty that never stops.
    """
    if not 0 <= top <= 1:
        raise UserError(f"top is {top}; it is the share of groups that pay for length, 0 to 1")
    group_B, n_B = batch["group_B"], batch.lengths_B
    right_B = (component(batch, outcome) > 0.5) & batch.valid_B
    rate_B = group_mean(right_B.to(n_B), group_B, batch.valid_B)
    z_B = (n_B - group_mean(n_B, group_B, right_B)) / (group_std(n_B, group_B, right_B, correction=0) + 1e-6)
    pays_B = right_B & torch.isin(group_B, best_groups(rate_B, group_B, batch.valid_B, top))
    return on_last(batch.returns_B - torch.where(pays_B, alpha * torch.sigmoid(z_B), 0.0), batch)


def best_groups(rate_B: Tensor, group_B: Tensor, valid_B: Tensor, top: float) -> Tensor:
    """The groups of the highest rates, ceil(top M) of M; of equal ones those that come first by number."""
    groups_M: Tensor = torch.unique(group_B[valid_B])
    rates = [float(rate_B[group_B == g][0]) for g in groups_M]
    order = sorted(range(len(rates)), key=lambda m: -rates[m])
    return groups_M[order[: math.ceil(top * len(rates) - 1e-9)]]


grpo_lambda = method(
    grpo.but(name="grpo-lambda", title="GRPO-lambda", paper="arXiv:2505.18086", doc=__doc__, shaping=short_where_solved)
)
