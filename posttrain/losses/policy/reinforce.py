from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import policy_loss


@policy_loss(laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"), reads=("adv_BT",))
def reinforce(batch: Batch) -> Tensor:
    """REINFORCE (Williams 1992): make what earned credit likelier; right only for fresh samples.

    L = -A log pi
    """
    return -batch["adv_BT"] * batch.logp_BT
