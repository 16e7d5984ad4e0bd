from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(laws=("shift_invariant", "scale_invariant", "groups_are_separate"))
def ones(batch: Batch) -> Tensor:
    """Ones: every token of every valid answer gets credit 1, whatever it earned: supervised learning.

    A_t = 1
    """
    return (batch.mask_BT > 0).to(batch.logp_BT.dtype)
