from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import term


@term(paper="arXiv:1602.01783", reads=("entropy_BT",))
def entropy(batch: Batch, coef: float = 0.01) -> Tensor:
    """Entropy bonus: a little reward for staying undecided, so that exploration does not die early.

    L = -coef H(pi(. | s_t));  coef < 0 sharpens
    """
    return -coef * batch["entropy_BT"]
