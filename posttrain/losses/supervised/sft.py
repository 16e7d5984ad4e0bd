from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import supervised_loss


@supervised_loss()
def sft(batch: Batch) -> Tensor:
    """Supervised fine-tuning: make the given answer likelier, token by token; prompt tokens are outside the mask.

    L = -log pi
    """
    return -batch.logp_BT
