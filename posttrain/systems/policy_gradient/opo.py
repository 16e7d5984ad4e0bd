"""OPO: exact on-policy REINFORCE with the baseline of least variance, in which long answers count more; no KL.

Departures: none known in the method: the baseline, one update per batch of fresh answers, and neither KL nor entropy
term are the paper's. 16 prompts with 8 answers each are this package's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens, group_sum
from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import advantage
from posttrain.methods.reinforce import reinforce


@advantage(
    name="opo",
    title="OPO",
    paper="arXiv:2505.23585",
    base="dr_grpo",
    laws=("shift_invariant", "groups_are_separate"),
    reads=("group_B", "reward_BT"),
)
def length_weighted(batch: Batch) -> Tensor:
    """OPO: the baseline of least variance, if the gradient of an answer grows with its length: long answers count more.

    A_i = R_i - sum_j |y_j| R_j / sum_j |y_j|, over the group;  the paper's section 3, for exact on-policy steps
    """
    group_B, length_B = batch["group_B"], batch.lengths_B  # 0 for a row that is not valid
    earned_B = torch.where(batch.valid_B, batch.returns_B, 0.0)
    best_B = group_sum(length_B * earned_B, group_B) / group_sum(length_B, group_B).clamp_min(1)
    return broadcast_to_tokens(earned_B - best_B, batch)


opo = method(
    reinforce.but(
        name="opo", title="OPO", paper="arXiv:2505.23585", doc=__doc__,
        advantage=length_weighted,
    )
)  # fmt: skip
