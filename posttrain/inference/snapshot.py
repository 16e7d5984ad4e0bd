"""A look at the books as they stood at one moment, read while the device goes on."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from posttrain.inference.pick import Books


class Look:
    """Who is alive, how much each has made, who stopped: copied to the host without waiting, behind the steps before it."""

    count: ClassVar[int] = 0  # of all looks so far; a job belongs to those after it was seated

    def __init__(self, books: Books) -> None:
        Look.count += 1
        self.number = Look.count
        seen = torch.stack((books.alive.long(), books.made, books.stopped.long()))
        self.event: torch.cuda.Event | None = None
        if seen.is_cuda:
            self.seen = torch.empty(seen.shape, dtype=seen.dtype, pin_memory=True)
            self.seen.copy_(seen, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.seen = seen

    def read(self) -> np.ndarray:
        """(alive, made, stopped) of every slot, waiting for the copy if it is not there yet."""
        if self.event is not None:
            self.event.synchronize()
        return self.seen.numpy()

    def rows(self, books: Books, seats: list[int]) -> tuple[Tensor, Tensor]:
        """Answers and log-probabilities of slots that had ended: nobody writes there, so a second stream may read them."""
        if self.event is None:
            return books.tokens[seats], books.logp[seats]
        with torch.cuda.stream(_side()):
            torch.cuda.current_stream().wait_event(self.event)
            at = torch.tensor(seats, device=books.tokens.device)
            return books.tokens[at].cpu(), books.logp[at].cpu()


_STREAMS: list[torch.cuda.Stream] = []


def _side() -> torch.cuda.Stream:
    if not _STREAMS:
        _STREAMS.append(torch.cuda.Stream())
    return _STREAMS[0]
