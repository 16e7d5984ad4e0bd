"""Admission: waiting jobs get slots and pages, and their contexts are prefilled, once per group, some groups ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.inference.jobs import Job, SlotTable
from posttrain.inference.pages import OutOfPages
from posttrain.inference.sessions import Session
from posttrain.inference.slots import Slots
from posttrain.inference.transfer import to_device

MAX_BATCH_TOKENS = 8_192  # padded tokens per prefill batch
MAX_AHEAD_TOKENS = 32_768  # tokens of contexts that are prefilled before a slot is free for them
CHUNK_TOKENS = 4_096  # tokens of one sequence per prefill batch: longer ones are prefilled in chunks
Copy = tuple[int, int]  # one page into another


@dataclass
class PrefillTask:
    """A sequence to prefill into pages, after the `past` positions that they hold already."""

    tokens: Tensor
    pages: list[int]
    past: int = 0


class Admission:
    """Assigns slots and pages to jobs. `prefixes` holds the context's pages of each group that still has jobs waiting."""

    def __init__(self, slots: Slots, table: SlotTable, prefix_cache: bool, prefill_tokens: int = 0) -> None:
        self.slots, self.table, self.prefix_cache = slots, table, prefix_cache
        self.prefixes: dict[int, list[int]] = {}
        self.admitted, self.prefill_tokens = 0, prefill_tokens

    def admit(self, waiting: deque[Job], steps: int, few: int) -> list[int]:
        """Admit jobs while there are slots and pages, and prefill what no page holds yet; returns the slots assigned. few: the first
        slots, which are enough for all: beyond them a turn does not go back to where the one before it was."""
        new: list[int] = []
        copies: list[tuple[int, int]] = []
        free, pool = dict.fromkeys(self.table.free()), self.slots.pages
        ahead = not self.slots.one_page_each and not self.prefix_cache
        enough = len(free) * self.slots.block_table.shape[1]
        if ahead and waiting[0].group not in self.prefixes and len(pool.free) > enough:
            self._prefill(self._ahead(waiting, MAX_AHEAD_TOKENS))  # the device prefills while the host assigns slots
        tasks: list[PrefillTask] = []
        while free and waiting:
            last = -1 if (session := waiting[0].session) is None else session.slot
            slot = last if last in free and last < few else next(iter(free))
            try:
                task, copied = self._assign_pages(waiting[0], slot, steps)
            except OutOfPages:
                break
            job = waiting.popleft()
            del free[slot]
            self.admitted += 1
            job.order = self.admitted
            if task is not None:
                tasks.append(task)
            if copied:
                copies.append(copied)
            self.table.assign(slot, job)
            new.append(slot)
        if not new:
            return new
        self.table.fill(new, pool.size)
        if tasks and ahead:
            tasks += self._ahead(waiting, MAX_AHEAD_TOKENS - sum(len(t.tokens) for t in tasks))
        self._prefill(tasks)
        if copies:
            source_N, target_N = to_device(copies, self.slots.device).T
            self.slots.pages.copy(source_N, target_N)
        self.release_prefixes(keep={job.group for job in waiting})
        return new

    def keep(self, job: Job, slot: int) -> None:
        """What a job has read, for whoever goes on from it: its conversation, or any job with the same prefix."""
        pool, read = self.slots.pages, job.sequence[:-1]
        if job.session is not None and self.slots.one_page_each:
            job.session.copy_out(read, slot + 1, pool)
        elif job.session is not None:
            job.session.keep(read, job.pages, pool)
            job.session.slot, job.pages = slot, []
        elif self.prefix_cache and not self.slots.one_page_each:
            pool.cache_prefix(read, job.pages, job.identity)

    def release_prefixes(self, keep: set[int]) -> None:
        """Release the context pages of all other groups."""
        for group in self.prefixes.keys() - keep:
            self.slots.pages.release(self.prefixes.pop(group))

    def _assign_pages(self, job: Job, slot: int, steps: int) -> tuple[PrefillTask | None, Copy | None]:
        """Give a job its pages; returns what to prefill into them, and what to copy into one of them after that."""
        pool = self.slots.pages
        tokens = job.sequence[:-1]
        if self.slots.one_page_each:
            return self._only_page(job, slot, tokens)
        if job.session is not None:
            return self._of_session(job, job.session, tokens, pool.needed(len(tokens) + steps + 1))
        if job.group >= 0 and job.is_new and len(tokens) and not self.prefix_cache:
            return self._with_shared_prefix(job, tokens, pool.needed(steps + 1)), None
        found = pool.find_prefix(tokens, job.identity) if self.prefix_cache else []
        need = pool.needed(len(tokens) + steps + 1)
        try:
            job.prefix_len, job.pages = 0, found + pool.allocate(need - len(found))
        except OutOfPages:
            pool.release(found)
            raise
        if self.prefix_cache:  # a sibling may share them at once: they are prefilled before any step reads them
            pool.cache_prefix(tokens, job.pages, job.identity)
        past = len(found) * pool.size
        return (PrefillTask(tokens, job.pages, past) if past < len(tokens) else None), None

    def _only_page(self, job: Job, slot: int, tokens: Tensor) -> tuple[PrefillTask | None, Copy | None]:
        """Where each slot has one page: the conversation so far is copied into it, or the context from a sibling."""
        job.pages, sibling, past = [slot + 1], self._sibling(job), 0
        if sibling is not None or not len(tokens):
            return None, (sibling.pages[0], slot + 1) if sibling is not None and len(tokens) else None
        if job.session is not None and job.session.copied is not None and job.session.begins(tokens):
            past = job.session.length
            job.session.copy_in(slot + 1, self.slots.pages)
        return (PrefillTask(tokens, job.pages, past) if past < len(tokens) else None), None

    def _of_session(
        self, job: Job, session: Session, tokens: Tensor, need: int
    ) -> tuple[PrefillTask | None, Copy | None]:
        """A turn of a conversation: its positions stand one after another in its pages, so that the next turn can go on in the page
        that this one ends in. Siblings that begin alike share the full pages of their context, which attention reads once for
        neighbours, and copy the one that is not full."""
        pool, prefix = self.slots.pages, self.prefixes.get(job.group) if job.is_new else None
        past, copied, full = 0, None, len(tokens) // pool.size
        if (
            not session.begins(tokens) or not session.pages
        ):  # it is new, its context was rewritten, or its pages are gone
            session.drop(pool)
        if session.pages:
            held, past = session.take(pool), session.length
            try:
                job.pages = held + pool.allocate(max(need - len(held), 0))
            except OutOfPages:
                session.keep(session.ids, held, pool)
                raise
        elif prefix is not None:
            own, past = pool.allocate(need - full), len(tokens)
            job.pages, session.shared = pool.share(prefix[:full]) + own, full * pool.size
            copied = (prefix[full], own[0]) if len(tokens) % pool.size else None
        else:
            job.pages = pool.allocate(need)
            if job.group >= 0 and job.is_new and len(tokens):
                self.prefixes[job.group] = pool.share(job.pages[: pool.needed(len(tokens))])
                session.shared = full * pool.size
        job.prefix_len = session.shared
        return (PrefillTask(tokens, job.pages, past) if past < len(tokens) else None), copied

    def _with_shared_prefix(self, job: Job, tokens: Tensor, own: int) -> PrefillTask | None:
        """The pages of the group's context, prefilled for the first job that comes, and after them pages of the job's own."""
        pool, prefix = self.slots.pages, self.prefixes.get(job.group)
        pages = pool.allocate(own + (pool.needed(len(tokens)) if prefix is None else 0))
        if prefix is not None:
            job.pages = pool.share(list(prefix)) + pages
        else:
            job.pages = pages
            self.prefixes[job.group] = pool.share(pages[: pool.needed(len(tokens))])
        job.prefix_len = len(tokens)
        return PrefillTask(tokens, job.pages) if prefix is None else None

    def _sibling(self, job: Job) -> Job | None:
        """The first admitted job of the same group: its context is prefilled, or will be before anything is copied."""
        same = [j for j in self.table.jobs if j is not None and j.group == job.group >= 0] if job.is_new else []
        return min(same, key=lambda j: j.order) if same else None

    def _ahead(self, waiting: Iterable[Job], budget: int) -> list[PrefillTask]:
        """Contexts of the next groups: prefilling many sequences costs little more than prefilling one."""
        tasks = []
        for job in waiting:
            tokens = job.context[:-1]
            if job.group < 0 or not job.is_new or not len(tokens) or job.group in self.prefixes:
                continue
            budget -= len(tokens)
            if budget < 0:
                break
            try:
                self.prefixes[job.group] = self.slots.pages.allocate(self.slots.pages.needed(len(tokens)))
            except OutOfPages:
                break
            tasks.append(PrefillTask(tokens, self.prefixes[job.group]))
        return tasks

    def _prefill(self, tasks: list[PrefillTask]) -> None:
        """Batches of sequences of similar length, long ones in chunks; those with a past (earlier chunks, cached pages) apart from
        those without."""
        s = self.slots
        todo = sorted(tasks, key=lambda t: (t.past > 0, len(t.tokens) - t.past))
        while todo:
            batch: list[PrefillTask] = []
            longest = 0
            while todo:
                longest = max(longest, min(len(todo[0].tokens) - todo[0].past, CHUNK_TOKENS))
                full = (len(batch) + 1) * longest > MAX_BATCH_TOKENS
                if batch and (full or (todo[0].past > 0) != (batch[0].past > 0)):
                    break
                batch.append(todo.pop(0))
            counts = [min(len(t.tokens) - t.past, CHUNK_TOKENS) for t in batch]
            tokens = torch.zeros(len(batch), max(counts), dtype=torch.long)
            table = torch.zeros(len(batch), s.block_table.shape[1], dtype=torch.int32)
            for row, (t, n) in enumerate(zip(batch, counts, strict=True)):
                tokens.numpy()[row, :n] = t.tokens.numpy()[t.past : t.past + n]
                table.numpy()[row, : len(t.pages)] = t.pages
            s.prefill.run(tokens, [t.past for t in batch], counts, table)
            self.prefill_tokens += sum(counts)
            for t, n in zip(batch, counts, strict=True):
                t.past += n
            todo = [t for t in batch if t.past < len(t.tokens)] + todo
