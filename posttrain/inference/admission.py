"""How waiting jobs get pages and have their contexts read: once for all answers of a group, some groups ahead of their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.inference.jobs import Job, Seats
from posttrain.inference.pages import OutOfPages
from posttrain.inference.slots import Slots
from posttrain.inference.transfer import sent

PREFILL = 8_192  # padded tokens read at a time
AHEAD = 32_768  # tokens of contexts that are read before their turn
PIECE = 4_096  # tokens of one text read at a time


@dataclass
class Text:
    """What is to be read into pages, after the places that are there already."""

    tokens: Tensor
    pages: list[int]
    past: int = 0


class Admission:
    """Pages for jobs. `heads` are pages of contexts whose group has answers waiting."""

    def __init__(self, slots: Slots, seats: Seats, remember: bool) -> None:
        self.slots, self.seats, self.remember = slots, seats, remember
        self.heads: dict[int, list[int]] = {}
        self.admitted = self.read = 0

    def admit(self, waiting: deque[Job], steps: int) -> list[int]:
        """Seat jobs while there are slots and pages, and read what nobody has read before; returns the seats taken."""
        new: list[int] = []
        copies: list[tuple[int, int]] = []
        free, pool = self.seats.free(), self.slots.pages
        ahead = not self.slots.fixed and not self.remember
        if ahead and waiting[0].group not in self.heads and len(pool.free) > len(free) * self.slots.table.shape[1]:
            self._read(self._ahead(waiting, AHEAD))  # there is plenty: the device reads while the host seats
        texts: list[Text] = []
        for seat in free:
            if not waiting:
                break
            try:
                text, source = self._pages(waiting[0], seat, steps)
            except OutOfPages:
                break
            job = waiting.popleft()
            self.admitted += 1
            job.order = self.admitted
            if text is not None:
                texts.append(text)
            if source:
                copies.append((source, job.pages[0]))
            self.seats.sit(seat, job)
            new.append(seat)
        if not new:
            return new
        self.seats.settle(new, pool.size)
        if texts and ahead:
            texts += self._ahead(waiting, AHEAD - sum(len(t.tokens) for t in texts))
        self._read(texts)
        if copies:
            source, target = sent(copies, self.slots.device).T
            self.slots.pages.copy(source, target)
        self.drop({job.group for job in waiting})
        return new

    def drop(self, wanted: set[int]) -> None:
        """Let go of the contexts of other groups."""
        for group in self.heads.keys() - wanted:
            self.slots.pages.drop(self.heads.pop(group))

    def _pages(self, job: Job, seat: int, steps: int) -> tuple[Text | None, int]:
        """Give a job its pages; returns what is to be read into them, and the page to copy its only one from (or 0)."""
        pool = self.slots.pages
        text = job.text[:-1]
        if self.slots.fixed:
            job.pages, sibling = [seat + 1], self._sibling(job)
            if sibling is not None or not len(text):
                return None, sibling.pages[0] if sibling is not None and len(text) else 0
            return Text(text, job.pages), 0
        if job.group >= 0 and job.fresh and len(text) and not self.remember:
            return self._with_head(job, text, pool.needed(steps + 1)), 0
        found, need = pool.find(text) if self.remember else [], pool.needed(len(text) + steps + 1)
        try:
            job.head, job.pages = 0, found + pool.take(need - len(found))
        except OutOfPages:
            pool.drop(found)
            raise
        if self.remember:
            pool.note(text, job.pages)  # a sibling may have them at once: they are read before anybody looks
        past = len(found) * pool.size
        return (Text(text, job.pages, past) if past < len(text) else None), 0

    def _with_head(self, job: Job, text: Tensor, own: int) -> Text | None:
        """The group's context, read by whoever comes first, and pages of the job's own after it."""
        pool, head = self.slots.pages, self.heads.get(job.group)
        pages = pool.take(own + (pool.needed(len(text)) if head is None else 0))
        if head is not None:
            job.pages = pool.share(list(head)) + pages
        else:
            job.pages = pages
            self.heads[job.group] = pool.share(pages[: pool.needed(len(text))])
        job.head = len(text)
        return Text(text, job.pages) if head is None else None

    def _sibling(self, job: Job) -> Job | None:
        """The first seated job with the same context: it has read it, or will before anything is copied."""
        same = [j for j in self.seats.jobs if j is not None and j.group == job.group >= 0] if job.fresh else []
        return min(same, key=lambda j: j.order) if same else None

    def _ahead(self, waiting: Sequence[Job], budget: int) -> list[Text]:
        """Contexts of the next groups: reading many texts costs little more than reading one."""
        texts = []
        for job in waiting:
            text = job.context[:-1]
            if job.group < 0 or not job.fresh or not len(text) or job.group in self.heads:
                continue
            budget -= len(text)
            if budget < 0:
                break
            try:
                self.heads[job.group] = self.slots.pages.take(self.slots.pages.needed(len(text)))
            except OutOfPages:
                break
            texts.append(Text(text, self.heads[job.group]))
        return texts

    def _read(self, texts: list[Text]) -> None:
        """Texts of like length together, long ones in pieces; those with a past (earlier pieces, known pages) apart from fresh ones."""
        s = self.slots
        todo = sorted(texts, key=lambda t: (t.past > 0, len(t.tokens) - t.past))
        while todo:
            batch: list[Text] = []
            longest = 0
            while todo:
                longest = max(longest, min(len(todo[0].tokens) - todo[0].past, PIECE))
                if batch and ((len(batch) + 1) * longest > PREFILL or (todo[0].past > 0) != (batch[0].past > 0)):
                    break
                batch.append(todo.pop(0))
            counts = [min(len(t.tokens) - t.past, PIECE) for t in batch]
            tokens = torch.zeros(len(batch), max(counts), dtype=torch.long)
            table = torch.zeros(len(batch), s.table.shape[1], dtype=torch.int32)
            for row, (t, n) in enumerate(zip(batch, counts, strict=True)):
                tokens.numpy()[row, :n] = t.tokens.numpy()[t.past : t.past + n]
                table.numpy()[row, : len(t.pages)] = t.pages
            s.reader.read(tokens, [t.past for t in batch], counts, table)
            self.read += sum(counts)
            for t, n in zip(batch, counts, strict=True):
                t.past += n
            todo = [t for t in batch if t.past < len(t.tokens)] + todo
