"""Answers to make, and which slot each sits in, as the host last saw it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from posttrain.inference.sampling import Sample, Sampling

_NONE = torch.zeros(0, dtype=torch.long)  # one for all: making two tensors a job takes longer than all else about it


@dataclass(eq=False)
class Job:
    """One answer to make, and what has been made of it."""

    context: Tensor
    key: int
    how: Sampling
    completes: Callable[[Tensor], int] | None = None  # how many tokens complete a stop string, 0 if none does
    group: int = -1  # jobs of one group have the same context
    tail: int = -1  # the context's last token, where the caller has it at hand for a whole group
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
        """The token that the next step reads."""
        if len(self.tokens):
            return int(self.tokens[-1])
        return self.tail if self.tail >= 0 else int(self.context[-1])

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
        self.since = np.zeros(count, dtype=np.int64)  # the first look that knows of the job

    def sit(self, seat: int, job: Job) -> None:
        """Seat a job; `settle` then writes the arrays for all who are new."""
        self.jobs[seat], self.taken[seat] = job, True

    def settle(self, seats: list[int], page: int) -> None:
        jobs = [self.job(seat) for seat in seats]
        begin = np.array([len(j.context) - 1 for j in jobs])
        self.begin[seats] = begin
        self.places[seats] = begin + [len(j.tokens) for j in jobs]
        self.most[seats] = begin + 1 + [j.how.max_tokens for j in jobs]
        self.room[seats] = [room(j, page) for j in jobs]

    def widen(self, seat: int, page: int) -> None:
        """Its pages have changed."""
        self.room[seat] = room(self.job(seat), page)

    def leave(self, seat: int) -> None:
        self.jobs[seat], self.taken[seat] = None, False

    def move(self, source: list[int], target: list[int]) -> None:
        for a, b in zip(source, target, strict=True):
            self.jobs[b], self.jobs[a] = self.jobs[a], None
        for x in (self.taken, self.begin, self.places, self.most, self.room, self.since):
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


def room(job: Job, page: int) -> int:
    """Places that a job has: those of its head, and all that its other pages hold."""
    return job.head + (len(job.pages) - -(-job.head // page)) * page
