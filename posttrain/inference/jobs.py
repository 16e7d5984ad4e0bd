"""Sequences to generate, and the slot that each of them runs in, as the host last saw it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from posttrain.core.sampling import Sampling
from posttrain.inference.masks import Constraint
from posttrain.inference.sessions import Session
from posttrain.models.sampling import Sample

_NONE = torch.zeros(0, dtype=torch.long)  # shared: two new tensors per job would cost more than the rest of the job


@dataclass(eq=False)
class Job:
    """One sequence to generate: its prompt, its settings, and what has been generated so far."""

    context: Tensor  # the prompt's token ids
    key: int  # random identity: with the position it decides every draw
    how: Sampling  # temperature, truncation, token limit
    find_stop: Callable[[Tensor], int] | None = None  # number of tokens that complete a stop string, 0 if none does
    group: int = -1  # jobs of one group have the same context and identity, and share its prefill; -1: no group
    last_context_token: int = -1  # where the caller has it at hand for a whole group
    identity: bytes = b""  # what was observed besides the tokens: sequences share pages only if it is equal
    tokens: Tensor = _NONE  # generated so far, as of the last time that the host read them
    logp: Tensor = _NONE  # their log-probabilities
    stopped: bool = False  # ended by a stop token or stop string, not by the limit
    done: bool = False
    pages: list[int] = field(default_factory=list)
    prefix_len: int = 0  # positions in the pages shared with its group; its own begin with the next page
    order: int = 0  # of admission: the youngest is preempted first
    constraint: Constraint | None = None  # which tokens may come next; None: any
    session: Session | None = None  # of the conversation that this is a turn of

    @property
    def sequence(self) -> Tensor:
        """Context and generated tokens; the last one is the input of the next decode step."""
        return torch.cat((self.context, self.tokens)) if len(self.tokens) else self.context

    @property
    def length(self) -> int:
        return len(self.context) + len(self.tokens)

    @property
    def next_input(self) -> int:
        """The token that the next decode step reads."""
        if len(self.tokens):
            return int(self.tokens[-1])
        return self.last_context_token if self.last_context_token >= 0 else int(self.context[-1])

    @property
    def is_new(self) -> bool:
        """Nothing generated yet: its sequence is its group's context."""
        return not len(self.tokens)

    def cut_at_stop(self, so_far: Tensor) -> bool:
        """Whether a stop string is complete; the answer is cut after the token that completes it."""
        n = self.find_stop(so_far) if self.find_stop else 0
        if n:
            self.tokens, self.done = so_far[:n], True
        return bool(n)

    def sample(self) -> Sample:
        return Sample(self.tokens, self.logp, self.stopped)


class SlotTable:
    """The job in each slot; what the host needs of every job after each snapshot is kept in arrays."""

    def __init__(self, count: int) -> None:
        self.jobs: list[Job | None] = [None] * count
        self.occupied = np.zeros(count, dtype=bool)
        self.context_len = np.zeros(count, dtype=np.int64)  # positions that the context takes in the cache
        self.cache_len = np.zeros(count, dtype=np.int64)  # positions in use
        self.max_len = np.zeros(count, dtype=np.int64)  # positions that may ever be in use
        self.capacity = np.zeros(count, dtype=np.int64)  # positions in the pages that it has
        self.has_constraint = np.zeros(count, dtype=bool)
        self.since = np.zeros(count, dtype=np.int64)  # number of the first snapshot that includes the job

    def assign(self, slot: int, job: Job) -> None:
        """Put a job into a slot; `fill` then writes the arrays for all new jobs at once."""
        self.jobs[slot], self.occupied[slot], self.has_constraint[slot] = job, True, job.constraint is not None

    def fill(self, slots: list[int], page: int) -> None:
        jobs = [self.job(slot) for slot in slots]
        context_len = np.array([len(j.context) - 1 for j in jobs])
        self.context_len[slots] = context_len
        self.cache_len[slots] = context_len + [len(j.tokens) for j in jobs]
        self.max_len[slots] = context_len + 1 + [j.how.max_tokens for j in jobs]
        self.capacity[slots] = [capacity(j, page) for j in jobs]

    def update_capacity(self, slot: int, page: int) -> None:
        """Call after the job's pages have changed."""
        self.capacity[slot] = capacity(self.job(slot), page)

    def release(self, slot: int) -> None:
        self.jobs[slot], self.occupied[slot] = None, False

    def move(self, source: list[int], target: list[int]) -> None:
        for a, b in zip(source, target, strict=True):
            self.jobs[b], self.jobs[a] = self.jobs[a], None
        columns = (self.context_len, self.cache_len, self.max_len, self.capacity, self.since, self.has_constraint)
        for x in (self.occupied, *columns):
            x[target] = x[source]
        self.occupied[source] = False

    def job(self, slot: int) -> Job:
        found = self.jobs[slot]
        assert found is not None
        return found

    def running(self) -> list[int]:
        return np.flatnonzero(self.occupied).tolist()

    def hows(self) -> set[Sampling]:
        return {self.job(slot).how for slot in self.running()}

    def constrained(self) -> list[int]:
        """Slots whose job may not take every token."""
        return np.flatnonzero(self.occupied & self.has_constraint).tolist()

    def free(self) -> list[int]:
        return np.flatnonzero(~self.occupied).tolist()


def capacity(job: Job, page: int) -> int:
    """Positions that a job's pages hold: those of its shared prefix, and all positions of its own pages."""
    return job.prefix_len + (len(job.pages) - -(-job.prefix_len // page)) * page


def nobody(context: int, answer: int, tokens: Tensor) -> None:
    """Nobody is told that an answer has ended."""
