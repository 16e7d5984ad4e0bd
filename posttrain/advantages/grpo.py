from __future__ import annotations

from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.advantages.whiten import group_whiten
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(
    paper="arXiv:2402.03300",
    laws=("shift_invariant", "scale_invariant", "sums_to_zero", "groups_are_separate"),
    reads=("group_B", "reward_BT"),
)
def grpo(batch: Batch, eps: float = 1e-4) -> Tensor:
    """GRPO: an answer is as good as it stands among its siblings, in standard deviations.

    A_i = (R_i - mean_group R) / (std_group R + eps);  a group of one, or of equals, gets 0
    """
    return broadcast_to_tokens(group_whiten(batch.returns_B, batch["group_B"], batch.valid_B, eps), batch)
