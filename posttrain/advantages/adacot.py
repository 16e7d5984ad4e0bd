from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.gae import gae
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.registry import advantage


@advantage(
    title="Selective loss masking", paper="arXiv:2505.11896", base="gae", reads=("old_value_BT",), system="adacot"
)
def adacot(
    batch: Batch, at: int = 0, gamma: float = 1.0, lam: float = 0.95, whiten: bool = True
) -> tuple[Tensor, Tensor]:
    """Selective loss masking (AdaCoT): GAE, but the token that decides whether to think gets no credit.

    A_t = 0 for t = the policy's own token number `at` (the one after <think>);  A_t = GAE otherwise
    For stages whose questions all need the same mode: they would teach to choose it always. The critic still learns
    there; without credit a policy loss has no gradient.
    """
    if at < 0:
        raise UserError(f"at is {at}; it counts the policy's own tokens from 0")
    adv_BT, return_BT = gae(batch, gamma=gamma, lam=lam, whiten=whiten)
    number_BT = torch.where(batch.mask_BT > 0, (batch.mask_BT > 0).cumsum(-1) - 1, -1)
    return torch.where(number_BT == at, 0.0, adv_BT), return_BT
