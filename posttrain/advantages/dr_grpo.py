from __future__ import annotations

from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.advantages.whiten import group_centre
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(
    paper="arXiv:2503.20783",
    base="grpo",
    laws=("shift_invariant", "sums_to_zero", "groups_are_separate"),
    reads=("group_B", "reward_BT"),
)
def dr_grpo(batch: Batch) -> Tensor:
    """Dr. GRPO: compare with siblings but do not divide by their spread, which favours too easy and too hard prompts.

    A_i = R_i - mean_group R;  a group of one, or of equals, gets 0
    """
    return broadcast_to_tokens(group_centre(batch.returns_B, batch["group_B"], batch.valid_B), batch)
