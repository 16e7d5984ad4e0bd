"""Constrained sampling: which tokens may come next in a sequence, as a row of bits that is applied to its logits.

Whoever owns a job may give it a `Constraint`; a slot whose job has none may take any token. Bits come from the host, one row per
token, so while a constrained job runs the engine launches one decode step at a time and reads its token before the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posttrain.inference.transfer import to_device

if TYPE_CHECKING:
    from posttrain.inference.jobs import SlotTable
    from posttrain.inference.pick import SlotState

MASKED = " masked"  # at the end of a sampling mode


class Constraint(Protocol):
    """Decides token by token what may come next in one sequence; it must always allow at least one token."""

    accepted: int  # tokens that it has been told of

    def accept(self, token: int) -> None:
        """This token has been drawn."""

    def fill(self, row: NDArray[np.int32]) -> None:
        """Set the bits of all tokens that may come next, token i in bit i % 32 of word i // 32; the row is zero before."""


class Masks:
    """The bits of every slot, on the device: one address, which captured graphs read."""

    def __init__(self, count: int, vocab_size: int, device: torch.device) -> None:
        self.host: NDArray[np.int32] = np.full((count, -(-vocab_size // 32)), -1, dtype=np.int32)
        self.allowed_SW = torch.full(self.host.shape, -1, dtype=torch.int32, device=device)

    def update(self, table: SlotTable, state: SlotState) -> None:
        """Tell every constraint the token drawn last, and write what it allows now."""
        slots = table.constrained()
        last = state.token[to_device(slots, state.token.device)].tolist() if slots else []
        self.host.fill(-1)
        for slot, token in zip(slots, last, strict=True):
            constraint = table.job(slot).constraint
            assert constraint is not None
            if constraint.accepted < int(table.cache_len[slot] - table.context_len[slot]):
                constraint.accept(token)
            self.host[slot] = 0
            constraint.fill(self.host[slot])
        self.allowed_SW.copy_(torch.from_numpy(self.host))


def mask_logits(logits_SV: Tensor, allowed_SW: Tensor) -> Tensor:
    """-inf where the bit is 0."""
    bit = torch.arange(32, dtype=torch.int32, device=allowed_SW.device)
    allowed_SV = ((allowed_SW.unsqueeze(-1) >> bit) & 1).flatten(1)[:, : logits_SV.shape[1]].bool()
    return logits_SV.masked_fill(~allowed_SV, -torch.inf)
