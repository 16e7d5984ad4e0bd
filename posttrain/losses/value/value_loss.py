from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import term


@term(paper="arXiv:1707.06347", reads=("old_value_BT", "return_BT", "value_BT"))
def value_loss(batch: Batch, coef: float = 1.0, clip: float | None = 0.2, per: str = "") -> Tensor:
    """Value loss: the critic regresses on the return, in steps no larger than clip from what it said when sampling.

    L = coef 1/2 max((v - R)^2, (old_v + clip(v - old_v, -c, c) - R)^2);  clip=None: coef 1/2 (v - R)^2
    per: "answer" averages over an answer's tokens, then over answers; "token" over all tokens; "" as the method does.
    """
    return coef * 0.5 * clipped_error(batch, "BT", clip)


@term(title="Value losses", paper="arXiv:2310.04373", reads=("old_value_BTK", "return_BTK", "value_BTK"))
def value_losses(batch: Batch, coef: float = 1.0, clip: float | None = 0.2, per: str = "") -> Tensor:
    """Value losses: several critics, each on the return of its own reward; their losses are added.

    L = sum_k coef 1/2 max((v_k - R_k)^2, (old_v_k + clip(v_k - old_v_k, -c, c) - R_k)^2);  per as in `value_loss`
    """
    return coef * 0.5 * clipped_error(batch, "BTK", clip).sum(-1)


def clipped_error(batch: Batch, shape: str, clip: float | None) -> Tensor:
    """(v - R)^2, or the larger of that and the error of a value at most clip from the old one."""
    value, target = batch[f"value_{shape}"], batch[f"return_{shape}"]
    error = (value - target) ** 2
    if clip is None:
        return error
    old = batch[f"old_value_{shape}"]
    return torch.maximum(error, (old + (value - old).clamp(-clip, clip) - target) ** 2)
