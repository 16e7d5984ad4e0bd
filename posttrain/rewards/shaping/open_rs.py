from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.registry import shaping
from posttrain.rewards.shaping.cosine_length import cosine_length


@shaping(title="Open-RS", paper="arXiv:2503.16219", base="cosine_length")
def open_rs(
    batch: Batch, longest: int = 64, cosine: float = 2.0, form: float = 1.0, outcome: str = "reward", format: str = "",
) -> Tensor:  # fmt: skip
    """Open-RS: a cosine of the length, from 1 to 1/2 when right and from -1 to -1/2 when wrong, and a reward for the form.

    R = cosine c + form f;  c = +-(3/4 + 1/4 cos(pi n / longest)), + when the outcome is above 1/2
    outcome and format name components of the reward; without a format f = 0. The limit itself is not punished.
    """
    c_BT = cosine_length(batch, longest=longest, right=(1.0, 0.5), wrong=(-1.0, -0.5), over=None, outcome=outcome)
    worth_B = cosine * c_BT.sum(-1)
    return on_last(worth_B + form * component(batch, format) if format else worth_B, batch)
