"""The rollout engine: continuous batching over slots, one prefill per prompt for all its answers, a paged KV cache.

Each `step` admits waiting jobs, gives every running one pages to grow into, launches a few decode steps, and collects what had
finished when the previous step's launches were done: on a GPU the host works while the device runs. When pages run out the
youngest job is preempted; it continues later with the same tokens, because every draw depends on (key, position) alone.
Without a GPU the same code runs one decode step at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.inference.admission import Admission
from posttrain.inference.fused import Fused
from posttrain.inference.jobs import Job, SlotTable, nobody
from posttrain.inference.pages import PAGE, OutOfPages, Pages
from posttrain.inference.pick import choose_sampling_mode
from posttrain.inference.slots import MAX_STOP_IDS, Slots
from posttrain.inference.snapshot import Snapshot
from posttrain.models.decoder import Decoder
from posttrain.models.sampling import Sample

STRIDE = 8  # decode steps between two snapshots
SHARE = 0.5  # of the free memory, at most, for keys and values: the trainer needs the rest


class Engine:
    """Rollouts from a decoder. Memory and captured graphs are kept between calls; weights are read live.

    max_slots: sequences that run at a time (0: 1,024 on a GPU, 256 elsewhere)
    num_pages: size of the KV cache in pages (0: as many as the slots need and the free memory holds)
    prefix_cache: keep the pages of finished sequences, so that a later one with the same prefix need not prefill it
    stride: decode steps between two snapshots (0: 8 on a GPU, 1 elsewhere); above 1 the host is one snapshot behind
    """

    least_length, lent, kept = 0, False, 0  # positions needed later; conversations are in progress; how many keep pages

    def __init__(
        self, model: Decoder, max_slots: int = 0, num_pages: int = 0, prefix_cache: bool = False, stride: int = 0
    ) -> None:
        self.model, self.num_pages, self.prefix_cache = model, num_pages, prefix_cache
        self.cuda = model.lm_head.weight.is_cuda
        self.stride = stride or (STRIDE if self.cuda else 1)
        self.max_slots = max_slots or (1024 if self.cuda else 256)
        self.slots: Slots | None = None
        self.waiting: deque[Job] = deque()
        self.table = SlotTable(0)
        self.batch_size, self.sampling_mode = 0, ""  # slots that a decode step computes; "" after a job came or went
        self.pending: Snapshot | None = None  # of decode steps that may still be running
        self.preempted = self.prefill_tokens = 0  # since the engine was made
        self.finished: Callable[[int, int, Tensor], None] = nobody  # told (context, answer, tokens) as one ends

    # ---- a whole call

    @torch.no_grad()
    def generate(
        self, contexts: Sequence[Tensor], keys: Sequence[Sequence[int]], how: Sampling, stop_ids: Sequence[int],
        identities: Sequence[bytes] | None = None, find_stop: Callable[[Tensor], int] | None = None,
        limits: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Sample]]:  # fmt: skip
        """For each context, one answer per key; the same answers as `inference.sampling.generate`. `identities` names what was observed besides each context's tokens (images, sound): different ones share neither pages
        nor prefill. `limits` are token limits of single answers.
        """
        groups, observed = [], [b""] * len(contexts) if identities is None else identities
        for g, (context, row, identity) in enumerate(zip(contexts, keys, observed, strict=True)):
            most = [how.max_tokens] * len(row) if limits is None else limits[g]
            hows = [how if n == how.max_tokens else replace(how, max_tokens=n) for n in most]
            last = int(context[-1])
            groups.append([Job(context, k, h, find_stop, g, last, identity) for k, h in zip(row, hows, strict=True)])
        jobs = [job for group in groups for job in group]
        if not jobs:
            return [[] for _ in groups]
        self.prepare(len(jobs), max(len(j.context) + j.how.max_tokens for j in jobs), how.max_tokens, stop_ids)
        try:
            self.waiting.extend(jobs)
            place = {id(job): (g, i) for g, group in enumerate(groups) for i, job in enumerate(group)}
            while self.busy:
                ended = self.step()
                for job in ended if self.busy else ():  # an answer that ends last leaves nothing to do beside it
                    self.finished(*place[id(job)], job.tokens)
        except BaseException:
            self._ready().pages.clear_cache()  # some of the cached pages may not have been prefilled
            raise
        finally:
            self.clear()
        return [[job.sample() for job in group] for group in groups]

    # ---- piece by piece: for servers, agents and trees

    def prepare(self, jobs: int, length: int, width: int, stop_ids: Sequence[int], kept: int = 0) -> None:
        """Have slots for this many sequences of `length` positions and `width` new tokens, pages for `kept` if more, and the live weights."""
        if len(stop_ids) > MAX_STOP_IDS:
            raise UserError(f"{len(stop_ids)} stop tokens; at most {MAX_STOP_IDS} are supported")
        count, length = self._bucket(min(jobs, self.max_slots)), -(-(max(length, self.least_length) + 1) // PAGE) * PAGE
        s, known, self.kept = self.slots, self.kept, max(kept, self.kept)
        more = s is not None and kept > max(s.count, known)
        if s is None or s.length < length or s.width < width or s.count < count or more:  # it only ever grows
            old = (s.count, s.length, s.width) if s else (0, 0, 0)
            s = self.slots = None  # free the old memory before the new is measured,
            vars(self).pop("admission", None)  # and the reference that admission holds
            s = self.slots = self._allocate(max(count, old[0]), max(length, old[1]), max(width, old[2]))
            self.table = SlotTable(s.count)
            self.admission = Admission(s, self.table, self.prefix_cache, self.prefill_tokens)
        elif s.fused.refresh():
            s.pages.clear_cache()
        s.stop_ids.fill_(-1)
        s.stop_ids[: len(stop_ids)] = torch.tensor(list(stop_ids), dtype=torch.long)
        self.batch_size = 0

    def _allocate(self, count: int, length: int, width: int) -> Slots:
        size = PAGE if self.cuda or self.num_pages else length
        wanted = 1 + (max(count, self.kept) * (length // size + 1) if size < length else count)
        if self.cuda and not self.num_pages:
            torch.cuda.empty_cache()
            free = SHARE * torch.cuda.mem_get_info()[0]
            wanted = min(wanted, max(2, int(free / Pages.bytes_per_page(self.model, size))))
        pages = Pages(self.model, self.num_pages or wanted, size)
        return Slots(Fused(self.model, length), pages, count, length, width)

    def _bucket(self, n: int) -> int:
        """The batch size for n jobs: few different ones where each is a captured graph."""
        return max(16, 1 << (n - 1).bit_length()) if self.cuda else n

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or bool(self.table.occupied.any())

    @torch.no_grad()
    def step(self) -> list[Job]:
        """Admit, allocate pages, launch a few decode steps, collect from the previous ones; returns the jobs that have finished."""
        if self.waiting and not self.table.occupied.all():
            self._admit(2 * self.stride)
        stride = 1 if self.table.constrained() else self.stride  # a mask depends on the token before it
        if self.pending is not None and (stride < self.stride or self._all_finish() or self._should_compact()):
            last, self.pending = self.pending, None
            return self._collect(last)
        finished = self._extend_pages((1 + (stride > 1)) * stride)
        self._compact()
        before, self.pending = self.pending, None
        if self.table.occupied.any():
            s = self._ready()
            s.decode(self.batch_size, self.sampling_mode or self._choose_mode(), stride, self.table)
            self.pending = Snapshot(s.state)
        if stride == 1:
            before, self.pending = self.pending, None
        return finished + (self._collect(before) if before is not None else [])

    def _all_finish(self) -> bool:
        """Whether every job will have reached its limit when the running steps are done: no need to launch more."""
        left = self.table.max_len - 1 - self.table.cache_len
        return not self.waiting and bool((left[self.table.occupied] <= self.stride).all())

    def _should_compact(self) -> bool:
        """Whether so few jobs are left that they should be moved into fewer slots, which needs the device to be idle."""
        running = int(self.table.occupied.sum())
        return not self.waiting and running > 0 and self._bucket(running) <= self.batch_size // 2

    def _choose_mode(self) -> str:
        self.sampling_mode = choose_sampling_mode(self.table.hows(), bool(self.table.constrained()))
        return self.sampling_mode

    def clear(self) -> None:
        """Drop every job: nothing of an interrupted call is left behind."""
        self.pending = None
        self.waiting.clear()
        self._release(self.table.running())
        self.admission.release_prefixes(keep=set())
        self._ready().state.alive.zero_()
        self._ready().state.cache_len.zero_()

    def _ready(self) -> Slots:
        assert self.slots is not None, "call prepare() first"
        return self.slots

    # ---- slots

    def _admit(self, steps: int) -> None:
        s, few = self._ready(), self._bucket(int(self.table.occupied.sum()) + len(self.waiting))
        new = self.admission.admit(self.waiting, steps, few)
        if not new and not self.table.occupied.any() and self.admission.prefixes:
            self.admission.release_prefixes(keep=set())  # contexts prefilled ahead hold pages that the first job needs
            new = self.admission.admit(self.waiting, steps, few)
        if not new and not self.table.occupied.any():
            raise UserError(
                f"an answer of up to {s.length} tokens does not fit into the {s.pages.count * s.pages.size:,} positions that "
                "the device has room for; use a shorter max_tokens, a smaller model or bfloat16"
            )
        if new:
            self.batch_size = max(self.batch_size, self._bucket(max(new) + 1))
            self.table.since[new] = Snapshot.count + 1
            self.prefill_tokens, self.sampling_mode = self.admission.prefill_tokens, ""
            s.assign(new, [self.table.job(slot) for slot in new])

    def _release(self, slots: list[int]) -> None:
        s = self._ready()
        for slot in slots:
            job = self.table.job(slot)
            if not s.one_page_each:
                s.pages.release(job.pages)
            job.pages = []
            self.table.release(slot)
        self.sampling_mode = ""
        s.release(slots)

    def _compact(self) -> None:
        """Once no job waits, move the last ones into the first slots, so that a decode step computes fewer."""
        running = self.table.running()
        if self.waiting or not running:
            return
        size = self._bucket(len(running))
        if self.pending is not None or size > (self.batch_size // 2 if self.cuda else 0.8 * self.batch_size):
            return
        source = [i for i in running if i >= size]
        target = [i for i in self.table.free() if i < size][: len(source)]
        if source:
            s = self._ready()
            s.move(source, target)
            self.table.move(source, target)
            if s.one_page_each:
                for slot in target:
                    self.table.job(slot).pages = [slot + 1]
        self.batch_size = size

    # ---- pages

    def _extend_pages(self, steps: int) -> list[Job]:
        """Pages for the next steps of every running job; where none are left, the youngest job is preempted. Jobs that have finished
        without the host knowing are collected before that, and returned: they must not be resumed."""
        s, table, finished = self._ready(), self.table, list[Job]()
        if s.one_page_each:
            return finished
        short = table.occupied & (np.minimum(table.cache_len + steps + 1, table.max_len) > table.capacity)
        changed = []
        for slot in sorted(np.flatnonzero(short).tolist(), key=lambda i: table.job(i).order):
            job = table.jobs[slot]
            while job is not None and table.jobs[slot] is job:  # until it has its pages, or was preempted itself
                try:
                    want = min(int(table.cache_len[slot]) + steps + 1, int(table.max_len[slot]))
                    job.pages += s.pages.allocate(s.pages.needed(want - int(table.capacity[slot])))
                    table.update_capacity(slot, s.pages.size)
                    changed.append(slot)
                    break
                except OutOfPages:
                    if self.admission.prefixes:
                        self.admission.release_prefixes(keep=set())
                    elif self.pending is not None:
                        last, self.pending = self.pending, None
                        finished += self._collect(last)
                    else:
                        self._preempt()
        s.write_table([(slot, table.job(slot).pages) for slot in changed if table.occupied[slot]])
        return finished

    def _preempt(self) -> None:
        """Take the youngest job off its slot, with what it has generated, and put it first in the queue."""
        running = self.table.running()
        if len(running) == 1:
            raise UserError(
                "the device has no room for one answer so long; use a shorter max_tokens or a smaller model"
            )
        slot = max(running, key=lambda i: self.table.job(i).order)
        job, state = self.table.job(slot), self._ready().state
        n = int(state.num_generated[slot])
        job.tokens, job.logp = (x[slot, :n].cpu().clone() for x in (state.tokens, state.logp))
        self._release([slot])
        self.waiting.appendleft(job)
        self.preempted += 1

    # ---- finished jobs

    def _collect(self, snapshot: Snapshot) -> list[Job]:
        """Copy the answers that had finished at that snapshot to the host and release their slots."""
        s, table = self._ready(), self.table
        alive, num_generated, stopped = snapshot.read()
        known = table.occupied & (table.since <= snapshot.number)  # jobs admitted later are not in it
        table.cache_len = np.where(known, table.context_len + num_generated, table.cache_len)
        with_stops = [i for i in np.flatnonzero(known).tolist() if table.job(i).find_stop is not None]
        hit = [i for i in with_stops if table.job(i).cut_at_stop(s.state.tokens[i, : int(num_generated[i])].cpu())]
        finished = sorted({*np.flatnonzero(known & (alive == 0)).tolist(), *hit})
        if not finished:
            return []
        tokens, logp = (x.unbind() for x in snapshot.rows(s.state, finished))
        out = []
        for row, slot in enumerate(finished):
            job = table.job(slot)
            n = len(job.tokens) if job.done else int(num_generated[slot])  # a stop string may end some tokens earlier
            job.tokens, job.logp = tokens[row][:n], logp[row][:n]
            job.stopped, job.done = bool(stopped[slot]) or job.done, True
            self.admission.keep(job, slot)
            out.append(job)
        self._release(finished)
        return out
