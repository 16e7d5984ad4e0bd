"""The slots: answers in progress, and the step that moves the first n of them on by one token, captured once as a graph."""

from __future__ import annotations

import numpy as np
import torch

from posttrain.inference.attention import mates as best_mates
from posttrain.inference.attention import span, work
from posttrain.inference.fused import Fused
from posttrain.inference.jobs import Job
from posttrain.inference.pages import Pages
from posttrain.inference.pick import Books, pick
from posttrain.inference.prefill import Reader
from posttrain.inference.products import Where
from posttrain.inference.transfer import sent
from posttrain.models.kernels import serve

STOPS = 16  # stop ids a run may have; a fixed number, so that captured graphs serve every run


class Slots:
    """Books and page tables of every slot; on a GPU one captured graph for each number of slots and way to sample."""

    def __init__(self, fused: Fused, pages: Pages, count: int, length: int, width: int) -> None:
        self.fused, self.pages, self.count, self.length, self.width = fused, pages, count, length, width
        self.device = pages.keys.device
        self.books = Books.blank(count, width, self.device)
        self.fixed = pages.size >= length and pages.count > count  # every slot has one page of its own, for good
        wide = 1 if self.fixed else pages.needed(length) + 1  # head and own places each end within a page
        self.pages_of = np.zeros((count, wide), dtype=np.int32)  # the host's copy of the table
        self.table = torch.zeros(self.pages_of.shape, dtype=torch.int32, device=self.device)
        self.stops = torch.full((STOPS,), -1, dtype=torch.long, device=self.device)
        self.arrived = torch.zeros(count, pages.keys.shape[2], dtype=torch.int32, device=self.device)
        self.work = np.zeros(0, dtype=np.int32)  # attention's list of spans as the device has it
        self.todo = torch.zeros(2 * count * wide, dtype=torch.int32, device=self.device)
        self.graphs: dict[tuple[int, str, int, int], torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None  # graphs take turns in it
        self.reader = Reader(fused, pages, self.pool)
        if self.fixed:
            self.table[:, 0] = torch.arange(1, count + 1)

    def step(self, n: int, way: str, mates: int = 1, spans: int = 0) -> None:
        """One token for each of the first n slots, with the first so many spans of the list for attention; slots that are not
        alive compute too, and nothing of theirs is kept."""
        books = self.books.first(n)
        table = self.table[:n] if spans else self.table[:n, : self._used(n)]
        where = Where(table, books.head, books.filled, arrived=self.arrived, work=self.todo[:spans] if spans else None)
        pick(self.fused.step(books.token, self.pages, where, mates), books, self.stops, way)

    def run(self, n: int, way: str, steps: int) -> None:
        planned = self.pool is not None or serve(self.pages.keys)
        kind = (n, way, *self._plan(n)) if planned else (n, way, 1, 0)
        if self.pool is not None and kind not in self.graphs:
            self.graphs[kind] = self._capture(*kind)
        for _ in range(steps):
            if self.pool is None:
                self.step(*kind)
            else:
                self.graphs[kind].replay()

    def _plan(self, n: int) -> tuple[int, int]:
        """Have attention's list of work for the pages that the slots have now; returns how many mates it is for and its length,
        of which there are few."""
        mates, each = self._mates(n), span(n, self.pages.keys.shape[2])
        made = work(np.count_nonzero(self.pages_of[:n], axis=1), each, mates)
        size = _rounded(len(made), -(-n // mates))
        made = np.pad(made, (0, size - len(made)), constant_values=-1)
        if not np.array_equal(made, self.work):
            self.work = made
            self.todo[:size].copy_(sent(made, self.device))
        return mates, size

    def _mates(self, n: int) -> int:
        """Slots that one program of attention serves: several only where most neighbours share a head."""
        c = self.fused.model.config
        mates = best_mates(n, c.num_heads, c.num_kv_heads, c.head_dim)
        first = self.pages_of[:n, 0].reshape(-1, mates)
        alike = (first == first[:, :1]).all(1) & (first[:, 0] > 0)
        return mates if 2 * np.count_nonzero(alike) > len(first) else 1

    def _used(self, n: int) -> int:
        """Columns of the table that any of the slots uses; one alone would mean a fixed page."""
        return self.table.shape[1] if self.fixed else max(2, int(np.count_nonzero(self.pages_of[:n], axis=1).max()))

    def _capture(self, n: int, way: str, mates: int, spans: int) -> torch.cuda.CUDAGraph:
        """Record the step, so that the host launches one graph instead of hundreds of kernels; the books stay as they are."""
        kept = [x.clone() for x in self.books.every()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step(n, way, mates, spans)  # compiles what is new, and lets cuBLAS take its memory
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self.step(n, way, mates, spans)
        for x, was in zip(self.books.every(), kept, strict=True):
            x.copy_(was)
        return graph

    def move(self, source: list[int], target: list[int]) -> None:
        """Slots to other places; paged keys and values stay where they are. What was left behind is stepped again one day, so
        it must point to nobody's pages."""
        a, b = (sent(x, self.device) for x in (source, target))
        for x in self.books.every():
            x[b] = x[a]
        if self.fixed:
            self.pages.copy(a + 1, b + 1)
        else:
            self.pages_of[target] = self.pages_of[source]
        self.vacate(source)

    def seat(self, seats: list[int], jobs: list[Job]) -> None:
        """Write the books of new jobs."""
        b, at = self.books, sent(seats, self.device)
        hows = [j.how for j in jobs]
        whole = [
            [j.last for j in jobs], [j.head for j in jobs], [len(j.context) - 1 + len(j.tokens) for j in jobs],
            [len(j.tokens) for j in jobs], [h.max_tokens for h in hows], [j.key for j in jobs],
            [h.top_k if h.temperature else 1 for h in hows],
        ]  # fmt: skip
        real = [[1 / (h.temperature or 1.0) for h in hows], [h.top_p for h in hows], [h.min_p for h in hows]]
        columns = (*sent(np.array(whole), self.device), *sent(np.array(real, dtype=np.float32), self.device))
        into = (b.token, b.head, b.filled, b.made, b.limit, b.key, b.top_k, b.cold, b.top_p, b.min_p)
        for to, values in zip(into, columns, strict=True):
            to[at] = values
        b.alive.index_fill_(0, at, True)
        b.stopped.index_fill_(0, at, False)
        b.raw[at] = sent([h.raw_logp for h in hows], self.device)
        for seat, job in zip(seats, jobs, strict=True):
            if len(job.tokens):
                b.tokens[seat, : len(job.tokens)] = job.tokens.to(self.device)
                b.logp[seat, : len(job.logp)] = job.logp.to(self.device)
        self.write_table([(seat, job.pages) for seat, job in zip(seats, jobs, strict=True)])

    def vacate(self, seats: list[int]) -> None:
        """Slots that nobody sits in: they are stepped too, over one place of the page that belongs to nobody."""
        at = sent(seats, self.device, torch.long)
        for x in (self.books.alive, self.books.filled, self.books.head):
            x.index_fill_(0, at, 0)
        if not self.fixed and seats:
            self.pages_of[seats] = 0
            self.table.copy_(sent(self.pages_of, self.device))

    def write_table(self, rows: list[tuple[int, list[int]]]) -> None:
        if self.fixed or not rows:
            return
        for seat, pages in rows:
            self.pages_of[seat, : len(pages)] = pages
            self.pages_of[seat, len(pages) :] = 0
        self.table.copy_(sent(self.pages_of, self.device))


def _rounded(spans: int, programs: int) -> int:
    """The next of programs x 1, 1.5, 2, 3, 4, 6, ...: each is a graph of its own."""
    size, after = programs, programs * 3 // 2
    while size < spans:
        size, after = after, 2 * size
    return size
