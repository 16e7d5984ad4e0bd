from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import on_last
from posttrain.core.errors import UserError
from posttrain.core.part import settled
from posttrain.core.registry import shaping


@shaping(
    title="Soft overlong punishment (DAPO)", paper="arXiv:2503.14476", system="dapo", reads=("reward_BT",),
    follows=(("longest", "max_tokens"),),
)  # fmt: skip
def soft_overlong(batch: Batch, longest: int | None = None, cache: float = 0.2, price: float = 1.0) -> Tensor:
    """Soft overlong punishment (DAPO): in the last stretch before the limit each token costs, so that answers learn to end.

    R <- R + price clamp((L - C - n) / C, -1, 0);  n: tokens of the answer, L = longest, C = cache L
    Nothing up to L - C, the whole price at L. longest is the run's max_tokens if not given. Groups are selected by the
    reward before it, as in the authors' code.
    """
    longest = settled(longest, "longest", "soft_overlong")
    if longest < 1 or not 0 < cache <= 1:
        raise UserError(f"got longest={longest}, cache={cache}; longest is in tokens, cache a share of it above 0")
    room = cache * longest
    due_B = ((longest - room - batch.lengths_B) / room).clamp(-1.0, 0.0)
    none = batch.but(reward_BT=torch.zeros_like(batch["reward_BT"]))
    return batch["reward_BT"] + on_last(price * due_B, none)
