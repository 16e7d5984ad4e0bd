from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.task_std import task_std
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.registry import advantage


@advantage(title="AEPO", paper="arXiv:2512.12967", base="task_std", system="qwenlong-l15")
class aepo:
    """AEPO (QwenLong-L1.5): blame is left out while the policy is too undecided, and comes back once it is too sure.

    A_i < 0 -> 0 from when H > high until H < low;  H: mean of -old_logp over the batch's tokens, its entropy in nats
    Praise alone sharpens, blame spreads, so H is held near [low, high]. Credit is `task_std`'s. low=0, high=inf never
    gates; high=0 always does. The paper's limits are its model's: set them around the entropy that training starts with.
    """

    def __init__(self, low: float = 0.2, high: float = 0.5) -> None:
        if not 0 <= low <= high:
            raise UserError(f"got low={low}, high={high}; the entropy is kept in a band, 0 <= low <= high")
        self.low, self.high, self.gated = low, high, False

    def __call__(self, batch: Batch) -> Tensor:
        adv_BT: Tensor = task_std(batch)
        own_BT = batch.mask_BT > 0
        entropy = -float(batch["old_logp_BT"][own_BT].mean()) if bool(own_BT.any()) else 0.0
        if entropy > self.high:
            self.gated = True
        elif entropy < self.low:
            self.gated = False
        return torch.where(adv_BT < 0, 0.0, adv_BT) if self.gated else adv_BT

    def state_dict(self) -> dict[str, Any]:
        return {"gated": self.gated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gated = bool(state["gated"])
