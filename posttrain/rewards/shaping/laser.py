from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.registry import shaping


@shaping(title="LASER", paper="arXiv:2505.15612")
def laser(batch: Batch, target: float = 32.0, alpha: float = 0.5, outcome: str = "reward") -> Tensor:
    """LASER: a right answer within the target length earns a bonus; a longer one loses only that, it is not cut off.

    R <- R + alpha [right and n <= target];  right: the outcome (the reward, or that component of it) is above 1/2
    The window must be much larger than the target. The paper's R is 1 or 0, its code's 1 or -1/2.
    """
    bonus_B = (component(batch, outcome) > 0.5) & (batch.lengths_B <= target)
    return on_last(batch.returns_B + alpha * bonus_B, batch)
