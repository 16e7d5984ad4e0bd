"""Answers to make, and which slot each sits in, as the host last saw it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from posttrain.engines.sampling import Sample, Sampling

_NONE = torch.zeros(0, dtype=torch.long)  # one for all: making two tensors a job takes longer than all else about it


@dataclass(eq=False)
class Job:
    """One answer to make, and what has been made of it."""

    context: Tensor
    key: int
    how: Sampling
    completes: Callable[[Tensor], int] | None = None  # how many tokens complete a stop string, 0 if none does
    group: int = -1  # jobs of one group have the same context
    tokens: Tensor = _NONE
    logp: Tensor = _NONE
    stopped: bool = False
    done: bool = False
    pages: list[int] = field(default_factory=list)
    head: int = 0  # places of its first pages that it shares with its group; its own begin with the next page
    order: int = 0  # of admission

    @property
    def text(self) -> Tensor:
        """All there is so far; its last token is the one that the next step reads."""
        return torch.cat((self.context, self.tokens)) if len(self.tokens) else self.context

    @property
    def length(self) -> int:
        return len(self.context) + len(self.tokens)

    @property
    def last(self) -> int:
        return int(self.tokens[-1] if len(self.tokens) else self.context[-1])

    @property
    def fresh(self) -> bool:
        """Nothing made yet: its text is its group's context."""
        return not len(self.tokens)

    def sample(self) -> Sample:
        return Sample(self.tokens, self.logp, self.stopped)


class Seats:
    """Jobs by slot, with what the host must know of all of them at every look kept in arrays."""

    def __init__(self, count: int) -> None:
        self.jobs: list[Job | None] = [None] * count
        self.taken = np.zeros(count, dtype=bool)
        self.begin = np.zeros(count, dtype=np.int64)  # places that the context takes
        self.places = np.zeros(count, dtype=np.int64)  # in use
        self.most = np.zeros(count, dtype=np.int64)  # that may ever be in use
        self.room = np.zeros(count, dtype=np.int64)  # that there are

    def sit(self, seat: int, job: Job, page: int) -> None:
        self.jobs[seat], self.taken[seat] = job, True
        self.begin[seat], self.places[seat] = len(job.context) - 1, job.length - 1
        self.most[seat] = len(job.context) + job.how.max_tokens
        self.widen(seat, page)

    def widen(self, seat: int, page: int) -> None:
        """Its pages have changed: those of its head have the head's places, the others all that a page has."""
        job = self.job(seat)
        self.room[seat] = job.head + (len(job.pages) - -(-job.head // page)) * page

    def leave(self, seat: int) -> None:
        self.jobs[seat], self.taken[seat] = None, False

    def move(self, source: list[int], target: list[int]) -> None:
        for a, b in zip(source, target, strict=True):
            self.jobs[b], self.jobs[a] = self.jobs[a], None
        for x in (self.taken, self.begin, self.places, self.most, self.room):
            x[target] = x[source]
        self.taken[source] = False

    def job(self, seat: int) -> Job:
        found = self.jobs[seat]
        assert found is not None
        return found

    def running(self) -> list[int]:
        return np.flatnonzero(self.taken).tolist()

    def free(self) -> list[int]:
        return np.flatnonzero(~self.taken).tolist()
