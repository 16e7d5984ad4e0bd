from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import spread
from posttrain.advantages.rloo import rloo
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage
from posttrain.losses.regularisers.token_outcome import token_worth


@advantage(title="OREAL", paper="arXiv:2502.06781", base="rloo", reads=("old_value_BT",), laws=("groups_are_separate",))
def oreal(batch: Batch, negative: float = 0.5, bar: float = 0.5, weigh: bool = True, floor: float = 0.0) -> Tensor:
    """OREAL: imitate right answers, push away from wrong ones by their leave-one-out share, token by token.

    right (R > bar): A_t = omega+_t;  wrong: A_t = negative (R - mean of others) omega-_t, which is -negative p when p of the
    others are right: blame reshaped so that imitation of the best of n and it add up
    omega+ = max(2 sigma(w_t) - 1, floor), omega- = max(1 - 2 sigma(w_t), floor) by the token-level reward model; the last
    token has weight 1, its outcome is known. floor=0 is the paper's. weigh=False: every weight is 1. Where `one_of_each` kept
    two of a group, the others' mean is its whole group's. The authors' code differs: it weighs by the mean of w up to t, read
    before token t, and multiplies right answers by their leave-one-out share too.
    """
    own_BT = batch.mask_BT > 0
    right_BT = (batch.returns_B > bar).unsqueeze(-1)
    whole_B = batch.get("reward:leave_one_out_B")
    above_BT = rloo(batch) if whole_B is None else spread(whole_B.to(batch.mask_BT), batch)
    credit_BT = torch.where(right_BT & own_BT, 1.0, negative * above_BT)
    if not weigh:
        return torch.where(own_BT, credit_BT, 0.0)
    w_BT, has_BT = token_worth(batch, torch.where(own_BT, batch["old_value_BT"], 0.0))
    sure_BT = 2 * torch.sigmoid(w_BT) - 1
    omega_BT = torch.where(right_BT, sure_BT, -sure_BT).clamp_min(floor)
    return torch.where(own_BT, credit_BT * torch.where(has_BT, omega_BT, 1.0), 0.0)
