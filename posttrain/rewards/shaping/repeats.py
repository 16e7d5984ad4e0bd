from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.registry import shaping


@shaping(
    title="Dense repetition penalty",
    paper="arXiv:2502.03373",
    system="demystify-long-cot",
    reads=("reward_BT", "token_BT"),
)
def repeats(batch: Batch, n: int = 40, penalty: float = -0.05, gamma: float = 0.99) -> Tensor:
    """Dense repetition penalty: tokens of an n-gram that the answer had before pay, where they stand.

    p_t = penalty if t lies in a repeated n-gram, else 0 (once, however many it lies in);  r_t <- r_t + G_t - G_{t+1}
    with G_t = p_t + gamma G_{t+1}: a penalty with a discount of its own, since the credit of the outcome, undiscounted,
    sums what is to come to G_t. gamma=1 is p itself.
    """
    if n < 1:
        raise UserError(f"n is {n}; an n-gram has at least 1 token")
    paid_BT = penalty * repeated(batch, n).to(batch.mask_BT)
    out_BT, later_B = torch.zeros_like(paid_BT), torch.zeros_like(paid_BT[:, 0])
    for t in reversed(range(paid_BT.shape[1])):
        own_B = batch.mask_BT[:, t] > 0
        now_B = torch.where(own_B, paid_BT[:, t] + gamma * later_B, later_B)
        out_BT[:, t] = now_B - later_B
        later_B = now_B
    return batch["reward_BT"] + out_BT


def repeated(batch: Batch, n: int) -> Tensor:
    """Which of the policy's own tokens lie in an n-gram of its own tokens that came before in the answer (B, T)."""
    out_BT = torch.zeros_like(batch.mask_BT, dtype=torch.bool)
    for b, (row_T, own_T) in enumerate(zip(batch["token_BT"], batch.mask_BT > 0, strict=True)):
        places, seen = own_T.nonzero().squeeze(-1).tolist(), set()
        letters = row_T[own_T].tolist()
        for j in range(len(letters) - n + 1):
            gram = tuple(letters[j : j + n])
            if gram in seen:
                out_BT[b, places[j : j + n]] = True
            seen.add(gram)
    return out_BT
