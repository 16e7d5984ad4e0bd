"""The rollout engine: slots refilled as answers end, prompts read once for all their answers, memory in pages.

A turn admits waiting jobs, sees that every running one has room, starts a few steps, and collects what had ended when the
last turn's steps were over: on a GPU the host works while the device runs. When pages run out the youngest job gives its
own back and waits; it goes on later as if nothing had happened, because every draw belongs to (key, position). Without a
GPU the same code runs step by step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.inference.admission import Admission
from posttrain.inference.fused import Fused
from posttrain.inference.jobs import Job, Seats
from posttrain.inference.pages import PAGE, OutOfPages, Pages
from posttrain.inference.sampling import Sample, Sampling
from posttrain.inference.slots import STOPS, Slots
from posttrain.inference.snapshot import Look
from posttrain.models.decoder import Decoder

STRIDE = 8  # steps between two looks of the host
SHARE = 0.5  # of the free memory, at most, for keys and values: the trainer needs the rest


class Engine:
    """Rollouts from a decoder. Memory and captured graphs are kept between calls; weights are read live.

    `most` answers run at a time; `room` is the number of pages where the caller knows better than the card's free memory;
    `remember` keeps the pages of ended answers, so that a text that begins like one is not read again; `stride` is the number
    of steps between two looks, with the host one look behind where it is more than 1.
    """

    def __init__(self, model: Decoder, most: int = 0, room: int = 0, remember: bool = False, stride: int = 0) -> None:
        self.model, self.room, self.remember = model, room, remember
        self.cuda = model.lm_head.weight.is_cuda
        self.stride = stride or (STRIDE if self.cuda else 1)
        self.most = most or (1024 if self.cuda else 256)
        self.slots: Slots | None = None
        self.waiting: deque[Job] = deque()
        self.seats = Seats(0)
        self.size = 0  # slots that are stepped
        self.way = ""  # of choosing tokens, as long as the same jobs run
        self.pending: Look | None = None  # of the steps that may still be running
        self.preempted = self.read = 0

    # ---- a whole call

    @torch.no_grad()
    def generate(
        self, contexts: Sequence[Tensor], keys: Sequence[Sequence[int]], how: Sampling, stop_ids: Sequence[int],
        completes: Callable[[Tensor], int] | None = None, limits: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Sample]]:  # fmt: skip
        """For each context, one answer a key; the same answers as `engines.sampling.generate`."""
        groups = []
        for g, (context, row) in enumerate(zip(contexts, keys, strict=True)):
            most = [how.max_tokens] * len(row) if limits is None else limits[g]
            hows = [how if n == how.max_tokens else replace(how, max_tokens=n) for n in most]
            tail = int(context[-1])
            groups.append([Job(context, key, h, completes, g, tail) for key, h in zip(row, hows, strict=True)])
        jobs = [job for group in groups for job in group]
        if not jobs:
            return [[] for _ in groups]
        self.open(len(jobs), max(len(j.context) + j.how.max_tokens for j in jobs), how.max_tokens, stop_ids)
        try:
            self.waiting.extend(jobs)
            while self.busy:
                self.turn()
        except BaseException:
            self._there().pages.forget()  # some of what is known may not have been read
            raise
        finally:
            self.clear()
        return [[job.sample() for job in group] for group in groups]

    # ---- piece by piece: for servers, agents and trees

    def open(self, jobs: int, length: int, width: int, stop_ids: Sequence[int]) -> None:
        """Have slots for this many answers of this length at a time, and the live weights."""
        if len(stop_ids) > STOPS:
            raise UserError(f"{len(stop_ids)} stop tokens; at most {STOPS} are supported")
        count, length = self._bucket(min(jobs, self.most)), -(-(length + 1) // PAGE) * PAGE
        s = self.slots
        if s is None or s.length < length or s.width < width or s.count < count:  # it only ever grows
            old = (s.count, s.length, s.width) if s else (0, 0, 0)
            s = self.slots = None  # its memory goes before the new one is measured
            vars(self).pop("admission", None)  # and whoever holds it
            s = self.slots = self._make(max(count, old[0]), max(length, old[1]), max(width, old[2]))
            self.seats = Seats(s.count)
            self.admission = Admission(s, self.seats, self.remember)
        elif s.fused.refresh():
            s.pages.forget()
        s.stops.fill_(-1)
        s.stops[: len(stop_ids)] = torch.tensor(list(stop_ids), dtype=torch.long)
        self.size = 0

    def _make(self, count: int, length: int, width: int) -> Slots:
        size = PAGE if self.cuda or self.room else length
        wanted = 1 + count * (-(-length // size) + (size < length))
        if self.cuda and not self.room:
            torch.cuda.empty_cache()
            wanted = min(wanted, max(2, int(SHARE * torch.cuda.mem_get_info()[0] / Pages.bytes_each(self.model, size))))
        pages = Pages(self.model, self.room or wanted, size)
        return Slots(Fused(self.model, length), pages, count, length, width)

    def _bucket(self, n: int) -> int:
        """The number of slots to step for n jobs: few different ones where each is a captured graph."""
        return max(16, 1 << (n - 1).bit_length()) if self.cuda else n

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or bool(self.seats.taken.any())

    @torch.no_grad()
    def turn(self) -> list[Job]:
        """Admit, make room, start a few steps, collect from the ones before; returns the jobs that have ended."""
        behind = self.stride > 1
        if self.waiting and not self.seats.taken.all():
            self._admit(2 * self.stride)
        if self.pending is not None and (self._all_end() or self._fewer()):
            last, self.pending = self.pending, None
            return self._collect(last)
        ended = self._grow((1 + behind) * self.stride)
        self._gather()
        before, self.pending = self.pending, None
        if self.seats.taken.any():
            s = self._there()
            s.run(self.size, self.way or self._ways(), self.stride)
            self.pending = Look(s.books)
        if not behind:
            before, self.pending = self.pending, None
        return ended + (self._collect(before) if before is not None else [])

    def _all_end(self) -> bool:
        """Whether every job will have come to its limit when the running steps are over: no need to start more."""
        left = self.seats.most - 1 - self.seats.places
        return not self.waiting and bool((left[self.seats.taken] <= self.stride).all())

    def _fewer(self) -> bool:
        """Whether so few jobs are left that they should be moved together, which needs the device to stand still."""
        running = int(self.seats.taken.sum())
        return not self.waiting and running > 0 and self._bucket(running) <= self.size // 2

    def _ways(self) -> str:
        """How the next tokens are chosen: plainly, the likeliest, or with cuts, whichever serves every job that runs."""
        hows = {self.seats.job(i).how for i in self.seats.running()}
        if all(h.temperature == 0 for h in hows):
            self.way = "greedy"
        else:
            plain = all(h.temperature and not h.top_k and h.top_p == 1 and not h.min_p for h in hows)
            self.way = "plain" if plain else "cut"
        self.way += " raw" if any(h.raw_logp for h in hows) else ""
        return self.way

    def clear(self) -> None:
        """Forget every job: nothing of an interrupted call is left behind."""
        self.pending = None
        self.waiting.clear()
        self._leave(self.seats.running())
        self.admission.drop(set())
        self._there().books.alive.zero_()
        self._there().books.filled.zero_()

    def _there(self) -> Slots:
        assert self.slots is not None, "open() comes first"
        return self.slots

    # ---- seats

    def _admit(self, steps: int) -> None:
        s = self._there()
        new = self.admission.admit(self.waiting, steps)
        if not new and not self.seats.taken.any() and self.admission.heads:
            self.admission.drop(set())  # contexts kept for those who wait are in the way of the first of them
            new = self.admission.admit(self.waiting, steps)
        if not new and not self.seats.taken.any():
            raise UserError(
                f"an answer of up to {s.length} tokens does not fit into the {s.pages.count * s.pages.size:,} places that "
                "the device has room for; use a shorter max_tokens, a smaller model or bfloat16"
            )
        if new:
            self.size = max(self.size, self._bucket(max(new) + 1))
            self.seats.since[new] = Look.count + 1
            self.read, self.way = self.admission.read, ""
            s.seat(new, [self.seats.job(seat) for seat in new])

    def _leave(self, seats: list[int]) -> None:
        s = self._there()
        for seat in seats:
            job = self.seats.job(seat)
            if not s.fixed:
                s.pages.drop(job.pages)
            job.pages = []
            self.seats.leave(seat)
        self.way = ""
        s.vacate(seats)

    def _gather(self) -> None:
        """Once nobody waits, move the last jobs together and step fewer slots."""
        running = self.seats.running()
        if self.waiting or not running:
            return
        size = self._bucket(len(running))
        if self.pending is not None or size > (self.size // 2 if self.cuda else 0.8 * self.size):
            return
        far = [i for i in running if i >= size]
        near = [i for i in self.seats.free() if i < size][: len(far)]
        if far:
            s = self._there()
            s.move(far, near)
            self.seats.move(far, near)
            if s.fixed:
                for seat in near:
                    self.seats.job(seat).pages = [seat + 1]
        self.size = size

    # ---- room

    def _grow(self, steps: int) -> list[Job]:
        """Pages for the next steps of every running job; where there are none left, the youngest gives up its own. Those who have
        ended unseen are collected before, and returned: they must not go on."""
        s, seats, ended = self._there(), self.seats, list[Job]()
        if s.fixed:
            return ended
        short = seats.taken & (np.minimum(seats.places + steps + 1, seats.most) > seats.room)
        changed = []
        for seat in sorted(np.flatnonzero(short).tolist(), key=lambda i: seats.job(i).order):
            job = seats.jobs[seat]
            while job is not None and seats.jobs[seat] is job:  # until it has its pages, or has given them up
                try:
                    want = min(int(seats.places[seat]) + steps + 1, int(seats.most[seat]))
                    job.pages += s.pages.take(s.pages.needed(want - int(seats.room[seat])))
                    seats.widen(seat, s.pages.size)
                    changed.append(seat)
                    break
                except OutOfPages:
                    if self.admission.heads:
                        self.admission.drop(set())
                    elif self.pending is not None:
                        last, self.pending = self.pending, None
                        ended += self._collect(last)
                    else:
                        self._preempt()
        s.write_table([(seat, seats.job(seat).pages) for seat in changed if seats.taken[seat]])
        return ended

    def _preempt(self) -> None:
        running = self.seats.running()
        if len(running) == 1:
            raise UserError(
                "the device has no room for one answer so long; use a shorter max_tokens or a smaller model"
            )
        seat = max(running, key=lambda i: self.seats.job(i).order)
        job, b = self.seats.job(seat), self._there().books
        job.tokens, job.logp = (x[seat, : int(b.made[seat])].cpu().clone() for x in (b.tokens, b.logp))
        self._leave([seat])
        self.waiting.appendleft(job)
        self.preempted += 1

    # ---- what has ended

    def _collect(self, look: Look) -> list[Job]:
        """Take answers that had ended at that look off the device and give their slots back."""
        s, seats = self._there(), self.seats
        alive, made, stopped = look.read()
        known = seats.taken & (seats.since <= look.number)  # who came later is not in it
        seats.places = np.where(known, seats.begin + made, seats.places)
        watched = [i for i in np.flatnonzero(known).tolist() if seats.job(i).completes is not None]
        cut = [i for i in watched if self._completed(i, int(made[i]))]
        ended = sorted({*np.flatnonzero(known & (alive == 0)).tolist(), *cut})
        if not ended:
            return []
        tokens, logp = (x.unbind() for x in look.rows(s.books, ended))  # this look's own copy
        out = []
        for row, seat in enumerate(ended):
            job = seats.job(seat)
            n = len(job.tokens) if job.done else int(made[seat])  # a stop string may have ended it some tokens ago
            job.tokens, job.logp = tokens[row][:n], logp[row][:n]
            job.stopped, job.done = bool(stopped[seat]) or job.done, True
            if self.remember and not s.fixed:
                s.pages.note(job.text[:-1], job.pages)
            out.append(job)
        self._leave(ended)
        return out

    def _completed(self, seat: int, made: int) -> bool:
        """Whether a stop string is complete; the answer is cut after the token that completes it."""
        job = self.seats.job(seat)
        so_far = self._there().books.tokens[seat, :made].cpu()
        n = job.completes(so_far) if job.completes else 0
        if n:
            job.tokens, job.done = so_far[:n], True
        return bool(n)
