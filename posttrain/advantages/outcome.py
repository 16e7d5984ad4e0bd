from __future__ import annotations

from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(laws=("groups_are_separate",), reads=("reward_BT",))
def outcome(batch: Batch) -> Tensor:
    """Outcome: every token of an answer gets what the answer earned, with no baseline.

    A_t = R
    """
    return broadcast_to_tokens(batch.returns_B, batch)
