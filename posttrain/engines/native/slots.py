"""The slots: answers in progress, and the step that moves the first n of them on by one token, captured once as a graph."""

from __future__ import annotations

import numpy as np
import torch

from posttrain.engines.native.attention import SPAN, Crews
from posttrain.engines.native.fused import Fused
from posttrain.engines.native.jobs import Job
from posttrain.engines.native.pages import Pages
from posttrain.engines.native.pick import Books, pick
from posttrain.engines.native.products import Where
from posttrain.engines.native.send import sent

STOPS = 16  # stop ids a run may have; a fixed number, so that captured graphs serve every run


class Slots:
    """Books and page tables of every slot; on a GPU one captured graph for each number of slots and way to sample."""

    def __init__(self, fused: Fused, pages: Pages, count: int, length: int, width: int) -> None:
        self.fused, self.pages, self.count, self.length, self.width = fused, pages, count, length, width
        self.device = pages.keys.device
        self.books = Books.blank(count, width, self.device)
        wide = 1 if pages.size >= length else pages.needed(length) + 1  # head and own places each end within a page
        self.pages_of = np.zeros((count, wide), dtype=np.int32)  # the host's copy of the table
        self.table = torch.zeros(self.pages_of.shape, dtype=torch.int32, device=self.device)
        self.crews = Crews.blank(count, self.table.shape[1], self.device)
        self.stops = torch.full((STOPS,), -1, dtype=torch.long, device=self.device)
        self.crewed = False
        self.graphs: dict[tuple[int, str, int, bool], torch.cuda.CUDAGraph] = {}
        if pages.size >= length:  # a page a slot, for good
            self.table[:, 0] = torch.arange(1, count + 1)

    @property
    def fixed(self) -> bool:
        """Every slot has one page of its own."""
        return self.pages.size >= self.length

    def step(self, n: int, way: str, wide: int) -> None:
        """One token for each of the first n slots, none with more pages than `wide`; those not alive compute too, and
        nothing of theirs is kept."""
        books = self.books.first(n)
        where = Where(self.table[:n, :wide], books.head, books.filled)
        logits = self.fused.step(books.token, self.pages, where, self.crews if self.crewed else None)
        pick(logits, books, self.stops, way)

    def run(self, n: int, way: str, steps: int) -> None:
        wide = self._wide(n)
        if self.device.type != "cuda":
            for _ in range(steps):
                self.step(n, way, wide)
            return
        kind = (n, way, wide, self.crewed)
        if kind not in self.graphs:
            self.graphs[kind] = self._capture(n, way, wide)
        for _ in range(steps):
            self.graphs[kind].replay()

    def _wide(self, n: int) -> int:
        """Pages that attention must look at: as many spans as the longest answer so far has, in few different numbers, so that
        a generous limit costs nothing until it is used."""
        if self.fixed:
            return self.table.shape[1]
        used = int(np.count_nonzero(self.pages_of[:n], axis=1).max())
        return min(self.table.shape[1], SPAN << (max(0, used - 1) // SPAN).bit_length())

    def _capture(self, n: int, way: str, wide: int) -> torch.cuda.CUDAGraph:
        """Record the step, so that the host launches one graph instead of hundreds of kernels; the books stay as they are."""
        kept = [x.clone() for x in self.books.every()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step(n, way, wide)  # compiles what is new, and lets cuBLAS take its memory
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        shared = next(iter(self.graphs.values())).pool() if self.graphs else None  # graphs take turns in one memory
        with torch.cuda.graph(graph, pool=shared):
            self.step(n, way, wide)
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
        whole = [
            (
                j.last,
                j.head,
                j.length - 1,
                len(j.tokens),
                j.how.max_tokens,
                j.key,
                j.how.top_k if j.how.temperature else 1,
            )
            for j in jobs
        ]
        real = [(1 / (j.how.temperature or 1.0), j.how.top_p, j.how.min_p) for j in jobs]
        columns = (*sent(whole, self.device).T, *sent(real, self.device).T)
        into = (b.token, b.head, b.filled, b.made, b.limit, b.key, b.top_k, b.cold, b.top_p, b.min_p)
        for to, values in zip(into, columns, strict=True):
            to[at] = values
        b.alive.index_fill_(0, at, True)
        b.stopped.index_fill_(0, at, False)
        b.raw[at] = sent([j.how.raw_logp for j in jobs], self.device)
        for seat, job in zip(seats, jobs, strict=True):
            if not job.fresh:
                b.tokens[seat, : len(job.tokens)] = job.tokens.to(self.device)
                b.logp[seat, : len(job.logp)] = job.logp.to(self.device)
        self.write_table([(seat, job.pages) for seat, job in zip(seats, jobs, strict=True)])

    def vacate(self, seats: list[int]) -> None:
        """Slots that nobody sits in: they are stepped too, over one place of the page that belongs to nobody."""
        at = sent(seats, self.device, torch.long)
        for x in (self.books.alive, self.books.filled, self.books.head):
            x.index_fill_(0, at, 0)
        self.write_table([(seat, []) for seat in seats])

    def write_table(self, rows: list[tuple[int, list[int]]]) -> None:
        if self.fixed or not rows:
            return
        for seat, pages in rows:
            self.pages_of[seat, : len(pages)] = pages
            self.pages_of[seat, len(pages) :] = 0
        self.table.copy_(sent(self.pages_of, self.device))

    def crew_up(self, crews: list[tuple[list[int], list[int], int]]) -> None:
        """Which slots read which common pages together; all others read for themselves."""
        if not crews and not self.crewed:
            return
        self.crewed = bool(crews)
        host = Crews.blank(self.count, self.table.shape[1], torch.device("cpu"))
        for row, (members, pages, places) in enumerate(crews):
            host.members[row, : len(members)] = torch.tensor(members, dtype=torch.int32)
            host.table[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
            host.common[members] = places
        for name in ("members", "table", "common"):
            getattr(self.crews, name).copy_(sent(getattr(host, name), self.device))
