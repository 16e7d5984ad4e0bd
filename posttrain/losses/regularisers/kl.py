from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import term
from posttrain.losses.regularisers.estimators import kl_estimate


@term(paper="arXiv:2402.03300", laws=("zero_at_the_reference",), reads=("ref_logp_BT",))
def kl(batch: Batch, coef: float = 0.04, kind: str = "k3") -> Tensor:
    """KL term: stay near the reference; the estimate of KL(pi || ref) at each token, as a loss (GRPO's is k3).

    L = coef k;  k1 = logp - ref;  k2 = k1^2 / 2;  k3 = exp(-k1) - 1 + k1
    What each pulls towards, for samples of pi: k1: nothing (its gradient is 0 on average, only noise);
    k2: the gradient of KL(pi || ref), exactly;  k3: the gradient of KL(ref || pi), equal to k2's near the reference.
    """
    return coef * kl_estimate(batch.logp_BT, batch["ref_logp_BT"], kind)
