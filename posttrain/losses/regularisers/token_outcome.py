from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.registry import term


@term(title="Token-level reward model (OREAL)", paper="arXiv:2502.06781", system="oreal", reads=("value_BT",))
def token_outcome(batch: Batch, coef: float = 1.0, bar: float = 0.5) -> Tensor:
    """Token-level reward model (OREAL): the critic's head learns which tokens speak for a right answer, from outcomes alone.

    L = -coef log sigma(+-mean_t w_t), + if R > bar;  w_t: the value of the state that token t leads to
    Every token of an answer carries its loss. An answer of one token has no state behind it and teaches nothing.
    """
    w_BT, has_BT = token_worth(batch, batch["value_BT"])
    count_B = has_BT.sum(-1)
    mean_B = torch.where(has_BT, w_BT, 0.0).sum(-1) / count_B.clamp_min(1)
    sign_B = torch.where(batch.returns_B > bar, 1.0, -1.0)
    loss_B = torch.where(count_B > 0, -coef * logsigmoid(sign_B * mean_B), 0.0)
    return loss_B.unsqueeze(-1) * (batch.mask_BT > 0)


def token_worth(batch: Batch, value_BT: Tensor) -> tuple[Tensor, Tensor]:
    """w_t = the value before the policy's next own action, which has seen token t; and where there is one."""
    own_BT = batch.mask_BT > 0
    w_BT, has_BT = torch.zeros_like(value_BT), torch.zeros_like(own_BT)
    next_B, any_B = torch.zeros_like(value_BT[:, 0]), torch.zeros_like(own_BT[:, 0])
    for t in reversed(range(own_BT.shape[1])):
        w_BT[:, t], has_BT[:, t] = next_B, any_B & own_BT[:, t]
        next_B = torch.where(own_BT[:, t], value_BT[:, t], next_B)
        any_B = any_B | own_BT[:, t]
    return w_BT, has_BT
