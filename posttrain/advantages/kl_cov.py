from __future__ import annotations

from torch import Tensor

from posttrain.advantages.clip_cov import covariance, largest
from posttrain.advantages.group import spread
from posttrain.advantages.grpo import grpo
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(title="KL-Cov", paper="arXiv:2505.22617", base="clip_cov", laws=("shift_invariant",))
def kl_cov(batch: Batch, ratio: float = 2e-3) -> tuple[Tensor, Tensor, Tensor]:
    """KL-Cov: GRPO's credit, and a mark on the few tokens whose likelihood and credit rise together most.

    mark_t = 1 for the `ratio` of tokens (1 at least) of largest cov_t, as in `clip_cov`; the loss `kl_cov` holds them back
    The paper marks anew at each update; here once a step. Also returns R, which a method without critic does not read.
    """
    adv_BT: Tensor = grpo(batch)
    cov_BT = covariance(batch["old_logp_BT"], adv_BT, batch.mask_BT)
    mark_BT = largest(cov_BT, batch.mask_BT > 0, ratio * float(batch.mask_BT.sum()))
    return adv_BT, spread(batch.returns_B, batch), mark_BT.to(adv_BT.dtype)
