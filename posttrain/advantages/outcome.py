from __future__ import annotations

from torch import Tensor

from posttrain.advantages.group import spread
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(laws=("groups_are_separate",), reads=("reward_BT",))
def outcome(batch: Batch) -> Tensor:
    """Outcome: every token of an answer gets what the answer earned, with no baseline.

    A_t = R
    """
    return spread(batch.returns_B, batch)
