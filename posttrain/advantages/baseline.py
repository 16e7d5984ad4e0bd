from __future__ import annotations

from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(
    title="Constant baseline",
    paper="arXiv:2503.14286",
    base="outcome",
    laws=("groups_are_separate",),
    reads=("reward_BT",),
)
def baseline(batch: Batch, c: float = 0.5) -> Tensor:
    """Constant baseline: what an answer earned above a fixed bar; with rewards of 0 and 1 the bar turns wrong into blame.

    A_t = R - c;  TOPR's rewards of -1 and 1 with its baseline b are 2 R - 1 - b = 2 (R - c), c = (1 + b) / 2
    """
    return broadcast_to_tokens(batch.returns_B - c, batch)
