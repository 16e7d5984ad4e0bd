from __future__ import annotations

from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens, group_size
from posttrain.advantages.whiten import group_centre
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(
    paper="arXiv:2402.14740",
    base="dr_grpo",
    laws=("shift_invariant", "sums_to_zero", "groups_are_separate"),
    reads=("group_B", "reward_BT"),
)
def rloo(batch: Batch) -> Tensor:
    """RLOO: the baseline of an answer is the mean of the *other* answers, which leaves the gradient unbiased.

    A_i = R_i - mean_{j != i} R_j = G/(G - 1) (R_i - mean_group R);  a group of one has no others and gets 0
    """
    group_B, valid_B = batch["group_B"], batch.valid_B
    size_B = group_size(group_B, valid_B)
    centred_B = group_centre(batch.returns_B, group_B, valid_B)
    return broadcast_to_tokens(centred_B * size_B / (size_B - 1).clamp_min(1), batch)
