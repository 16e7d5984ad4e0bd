from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import margin


@preference_loss(paper="arXiv:2310.12036", base="dpo", reads=("ref_logp_BT",), laws=("swap_flips_gradient_sign",))
def ipo(batch: Batch, beta: float = 0.1, length_normalised: bool = False) -> Tensor:
    """IPO: aim at a finite margin, so that a pair that is always won does not pull the policy away for ever.

    L = (u - 1/(2 beta))^2;  past the target the gradient turns back
    """
    return (margin(batch, mean=length_normalised) - 1 / (2 * beta)) ** 2
