"""A snapshot of all slots' state, copied to the host without blocking the device."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posttrain.inference.pick import SlotState


class Snapshot:
    """Which slots are alive, how many tokens each has generated, which have stopped: an asynchronous copy to the host, queued
    behind the decode steps launched before it."""

    count: ClassVar[int] = 0  # snapshots taken so far; a job appears in those taken after it was assigned a slot

    def __init__(self, state: SlotState) -> None:
        Snapshot.count += 1
        self.number = Snapshot.count
        values = torch.stack((state.alive.long(), state.num_generated, state.stopped.long()))
        self.event: torch.cuda.Event | None = None
        if values.is_cuda:
            self.values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.values.copy_(values, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.values = values

    def read(self) -> NDArray[np.int64]:
        """(alive, num_generated, stopped) of every slot; waits for the copy if it has not arrived yet."""
        if self.event is not None:
            self.event.synchronize()
        return self.values.numpy()

    def rows(self, state: SlotState, slots: list[int]) -> tuple[Tensor, Tensor]:
        """Tokens and log-probabilities of slots that had finished: no step writes there, so a second CUDA stream may read them."""
        if self.event is None:
            return state.tokens[slots], state.logp[slots]
        with torch.cuda.stream(_copy_stream()):
            torch.cuda.current_stream().wait_event(self.event)
            at = torch.tensor(slots, device=state.tokens.device)
            return state.tokens[at].cpu(), state.logp[at].cpu()


_STREAMS: list[torch.cuda.Stream] = []


def _copy_stream() -> torch.cuda.Stream:
    if not _STREAMS:
        _STREAMS.append(torch.cuda.Stream())
    return _STREAMS[0]
