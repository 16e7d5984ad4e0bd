from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import policy_loss
from posttrain.losses.supervised.sft import sft


@policy_loss(paper="arXiv:2304.06767", base="sft")
def raft(batch: Batch) -> Tensor:
    """RAFT: imitate the best of one's own answers; the filter `best_of` chose them, so no credit is read.

    L = -log pi
    """
    return sft(batch)
