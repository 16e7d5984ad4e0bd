from __future__ import annotations

from torch import Tensor

from posttrain.core.registry import term
from posttrain.core.types import Batch


@term(paper="arXiv:1602.01783", needs=("entropy",))
def entropy(batch: Batch, coef: float = 0.01) -> Tensor:
    """Entropy bonus: a little reward for staying undecided, so that exploration does not die early.

    L = -coef H(pi(. | s_t));  coef < 0 sharpens
    """
    return -coef * batch.need("entropy_BT")
