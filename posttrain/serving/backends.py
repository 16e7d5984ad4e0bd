"""Who makes the answers on tickets: the native engine, all requests together, or plain sampling, one request at a time."""

from __future__ import annotations

import os
from typing import Any

import torch

from posttrain.inference.engine import Engine
from posttrain.inference.jobs import Job
from posttrain.inference.pages import Pages
from posttrain.inference.sampling import generate
from posttrain.serving.request import Made, Ticket

LENGTH = 1024  # room for prompt and answer is made in multiples of this


class Native:
    """Every request's jobs together in the slots of the native engine."""

    name = "native"

    def __init__(self, policy: Any, slots: int = 0) -> None:
        self.policy = policy
        self.slots = slots or (64 if policy.device.type == "cuda" else 8)
        self.engine = Engine(policy.model, most=self.slots, remember=True)
        self.owner: dict[Job, tuple[Ticket, int]] = {}

    @property
    def longest(self) -> int:
        """The longest text to make room for: what the model knows; on a CPU, where every slot has its room for good, what a
        quarter of the memory holds (on a GPU the engine pages)."""
        known = self.policy.model.config.max_positions
        if self.policy.device.type == "cuda":
            return known
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(known, max(LENGTH, memory // 4 // self.slots // Pages.bytes_each(self.policy.model, 1)))

    def ready(self, ticket: Ticket, idle: bool) -> bool:
        """Whether it can be let in now; more room is made only while nothing runs."""
        s = self.engine.slots
        if s is not None and ticket.length < min(s.length, s.width):
            return True
        if idle:
            length = -(-(ticket.length + 1) // LENGTH) * LENGTH  # few different ones: every change is a fresh start
            self.engine.open(self.slots, length, length, self.policy.stop_ids)
        return idle

    def add(self, ticket: Ticket) -> None:
        self.owner |= {job: (ticket, i) for i, job in enumerate(ticket.jobs)}
        self.engine.waiting.extend(ticket.jobs)

    def drop(self, ticket: Ticket) -> None:
        """An answer that nobody waits for is complete as it is."""
        for i, job in enumerate(ticket.jobs):
            job.completes = len
            if job in self.engine.waiting:
                self.engine.waiting.remove(job)
                del self.owner[job]
                ticket.write({i: Made([], [], True)})

    def turn(self) -> None:
        if not self.engine.busy:
            return
        news: dict[Ticket, dict[int, Made]] = {}
        for job in self.engine.turn():
            ticket, i = self.owner.pop(job)
            news.setdefault(ticket, {})[i] = Made(job.tokens.tolist(), job.logp.tolist(), True, job.stopped)
        for job, made in self._so_far():
            ticket, i = self.owner[job]
            news.setdefault(ticket, {})[i] = made
        for ticket, some in news.items():
            ticket.write(some)

    def _so_far(self) -> list[tuple[Job, Made]]:
        """What running jobs have made, of those that somebody reads as it comes."""
        seats, s = self.engine.seats, self.engine.slots
        read = [i for i in seats.running() if self.owner[seats.job(i)][0].streams]
        if not read or s is None:
            return []
        at = torch.tensor(read, device=s.device)
        counts = s.books.made[at].tolist()
        tokens, logp = (x[at, : max(counts)].cpu() for x in (s.books.tokens, s.books.logp))
        rows = zip(read, counts, tokens, logp, strict=True)
        return [(seats.job(seat), Made(t[:n].tolist(), p[:n].tolist())) for seat, n, t, p in rows]

    def clear(self) -> None:
        self.owner.clear()
        self.engine.waiting.clear()
        if self.engine.slots is not None:
            self.engine.slots.pages.forget()
            self.engine.clear()


class Plain:
    """One request after the other, each written when it is whole: for models of transformers."""

    name = "transformers"

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.now: Ticket | None = None

    @property
    def longest(self) -> int:
        config = self.policy.model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", None) or 1 << 20)

    def ready(self, ticket: Ticket, idle: bool) -> bool:
        return idle

    def add(self, ticket: Ticket) -> None:
        self.now = ticket

    def drop(self, ticket: Ticket) -> None:
        ticket.write({i: Made([], [], True) for i in range(len(ticket.jobs))})
        self.now = None

    def turn(self) -> None:
        ticket, p = self.now, self.policy
        if ticket is None:
            return
        contexts, keys = [j.context for j in ticket.jobs], [[j.key] for j in ticket.jobs]
        samples = generate(p.model, contexts, keys, ticket.jobs[0].how, p.stop_ids, p.device)
        made = {}
        for i, (job, (s,)) in enumerate(zip(ticket.jobs, samples, strict=True)):
            n = job.completes(s.tokens) if job.completes else 0
            cut = slice(0, n or None)
            made[i] = Made(s.tokens[cut].tolist(), s.logp_T[cut].tolist(), True, s.stopped or n > 0)
        self.now = None
        ticket.write(made)

    def clear(self) -> None:
        self.now = None
