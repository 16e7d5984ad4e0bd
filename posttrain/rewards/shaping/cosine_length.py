from __future__ import annotations

import math

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.part import settled
from posttrain.core.registry import shaping


@shaping(
    title="Cosine length reward", paper="arXiv:2502.03373", system="demystify-long-cot", reads=("reward_BT",),
    follows=(("longest", "max_tokens"),),
)  # fmt: skip
def cosine_length(
    batch: Batch, longest: int | None = None, right: tuple[float, float] = (2.0, 1.0),
    wrong: tuple[float, float] = (-10.0, 0.0), over: float | None = -10.0, margin: int = 0, outcome: str = "reward",
) -> Tensor:  # fmt: skip
    """Cosine length reward: short is better when right, long is better when wrong, running into the limit is worst.

    R = c(right) or c(wrong), c(a, b) = b + (a - b)/2 (1 + cos(pi n / longest));  over if n + margin >= longest
    right, wrong: what an answer of no length and one of the longest get. An answer is right where its outcome (the
    reward, or that component of it) is above 1/2; longest is the run's max_tokens if not given. over=None: no word on the
    limit. margin: at most a quarter of the window.
    """
    longest = settled(longest, "longest", "cosine_length")
    if longest < 1:
        raise UserError(f"longest is {longest}; give the longest answer allowed, such as the run's max_tokens")
    n_B, near = batch.lengths_B.clamp(max=longest), min(margin, longest // 4)
    right_B = component(batch, outcome) > 0.5
    start_B, end_B = (torch.where(right_B, *pair) for pair in zip(right, wrong, strict=True))
    worth_B = end_B + (start_B - end_B) / 2 * (1 + torch.cos(math.pi * n_B / longest))
    if over is not None:
        worth_B = torch.where(batch.lengths_B + near >= longest, over, worth_B)
    return on_last(worth_B, batch)
