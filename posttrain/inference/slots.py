"""The slots: sequences in progress, and the decode step that advances the first n of them by one token, captured as a graph."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from posttrain.core.errors import UserError
from posttrain.inference.attention import best_slots_per_program, heads_fit, pages_per_span, span_schedule
from posttrain.inference.fused import Fused
from posttrain.inference.jobs import Job, SlotTable
from posttrain.inference.masks import MASKED, Masks, mask_logits
from posttrain.inference.pages import Pages
from posttrain.inference.pick import SlotState, pick
from posttrain.inference.prefill import Prefill
from posttrain.inference.products import Placement
from posttrain.inference.transfer import to_device
from posttrain.models.kernels import use_kernels

MAX_STOP_IDS = 16  # stop ids per run; a fixed number, so that captured graphs serve every run


class Slots:
    """State and block table of every slot; on a GPU one captured graph per number of slots and sampling mode."""

    def __init__(self, fused: Fused, pages: Pages, count: int, length: int, width: int) -> None:
        self.fused, self.pages = fused, pages
        self.count, self.length, self.width = count, length, width  # slots, positions per slot, new tokens per slot
        self.device = pages.keys.device
        if self.device.type == "cuda" and not heads_fit(pages.keys.shape[-1]):
            raise UserError(
                f"the engine's GPU kernels take heads of 16, 32, 64, 128 or 256 numbers, this model's have {pages.keys.shape[-1]}; "
                "use --device cpu, or train it (sampling then goes without the engine)"
            )
        self.state = SlotState.empty(count, width, self.device)
        self.one_page_each = pages.size >= length and pages.count > count  # slot s always has page s + 1, and no other
        # + 1: the shared prefix and the slot's own positions each end within a page
        columns = 1 if self.one_page_each else pages.needed(length) + 1
        self.host_table = np.zeros((count, columns), dtype=np.int32)  # the host's copy of the block table
        self.block_table = torch.zeros(self.host_table.shape, dtype=torch.int32, device=self.device)
        self.stop_ids = torch.full((MAX_STOP_IDS,), -1, dtype=torch.long, device=self.device)
        self.spans_done = torch.zeros(count, pages.keys.shape[2], dtype=torch.int32, device=self.device)
        self.host_schedule: NDArray[np.int32] = np.zeros(0, dtype=np.int32)  # what the device's schedule holds now
        self.schedule = torch.zeros(2 * count * columns, dtype=torch.int32, device=self.device)  # attention's spans
        self.graphs: dict[tuple[int, str, int, int], torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None  # shared by all graphs
        self.prefill = Prefill(fused, pages, self.pool)
        self.masks: Masks | None = None  # made for the first job that has a constraint
        if self.one_page_each:
            self.block_table[:, 0] = torch.arange(1, count + 1)

    def decode_step(self, n: int, sampling_mode: str, slots_per_program: int = 1, spans: int = 0) -> None:
        """One token for each of the first n slots, with the first `spans` entries of attention's schedule; slots that are not alive
        are computed too, and their results discarded."""
        state = self.state.first(n)
        table = self.block_table[:n] if spans else self.block_table[:n, : self._used_columns(n)]
        schedule = self.schedule[:spans] if spans else None
        place = Placement(table, state.prefix_len, state.cache_len, spans_done=self.spans_done, schedule=schedule)
        logits_SV = self.fused.decode_step(state.token, self.pages, place, slots_per_program)
        if sampling_mode.endswith(MASKED):
            assert self.masks is not None
            logits_SV = mask_logits(logits_SV, self.masks.allowed_SW[:n])
        pick(logits_SV, state, self.stop_ids, sampling_mode.removesuffix(MASKED))

    def decode(self, n: int, sampling_mode: str, steps: int, table: SlotTable) -> None:
        """Launch this many decode steps of the first n slots; one at a time in a masked mode, where the constraints of the table's
        jobs decide which tokens each slot may take."""
        if sampling_mode.endswith(MASKED):
            self.masks = self.masks or Masks(self.count, self.fused.model.config.vocab_size, self.device)
            self.masks.update(table, self.state)
        planned = self.pool is not None or use_kernels(self.pages.keys)
        kind = (n, sampling_mode, *self._plan(n)) if planned else (n, sampling_mode, 1, 0)
        if self.pool is not None and kind not in self.graphs:
            self.graphs[kind] = self._capture(*kind)
        for _ in range(steps):
            if self.pool is None:
                self.decode_step(*kind)
            else:
                self.graphs[kind].replay()

    def _plan(self, n: int) -> tuple[int, int]:
        """Bring attention's schedule up to date with the pages that the slots have now; returns slots per program and the schedule's
        length, of which there are few different ones."""
        slots_per_program, each = self._slots_per_program(n), pages_per_span(n, self.pages.keys.shape[2])
        schedule = span_schedule(np.count_nonzero(self.host_table[:n], axis=1), each, slots_per_program)
        size = _rounded(len(schedule), -(-n // slots_per_program))
        schedule = np.pad(schedule, (0, size - len(schedule)), constant_values=-1)
        if not np.array_equal(schedule, self.host_schedule):
            self.host_schedule = schedule
            self.schedule[:size].copy_(to_device(schedule, self.device))
        return slots_per_program, size

    def _slots_per_program(self, n: int) -> int:
        """Slots per attention program: several only where most neighbours share a prefix. One that is empty costs them nothing."""
        c = self.fused.model.config
        best = best_slots_per_program(n, c.num_heads, c.num_kv_heads, c.head_dim)
        first = self.host_table[:n, 0].reshape(-1, best)
        alike = ((first == first[:, :1]) | (first == 0)).all(1) & (first[:, 0] > 0)
        return best if 2 * np.count_nonzero(alike) > len(first) else 1

    def _used_columns(self, n: int) -> int:
        """Columns of the block table that any of the slots uses; a single column would mean one page per slot."""
        if self.one_page_each:
            return self.block_table.shape[1]
        return max(2, int(np.count_nonzero(self.host_table[:n], axis=1).max()))

    def _capture(self, n: int, sampling_mode: str, slots_per_program: int, spans: int) -> torch.cuda.CUDAGraph:
        """Record the decode step, so that the host launches one graph instead of hundreds of kernels; the state is restored."""
        saved = [x.clone() for x in self.state.tensors()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles new kernels, and lets cuBLAS allocate its workspace
            self.decode_step(n, sampling_mode, slots_per_program, spans)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self.pool, capture_error_mode="thread_local"
        ):  # other threads may use the GPU
            self.decode_step(n, sampling_mode, slots_per_program, spans)
        for x, was in zip(self.state.tensors(), saved, strict=True):
            x.copy_(was)
        return graph

    def move(self, source: list[int], target: list[int]) -> None:
        """Move sequences to other slots; paged keys and values stay where they are. The slots left behind may be stepped again
        later, so they must point to the null page."""
        a, b = (to_device(x, self.device) for x in (source, target))
        for x in self.state.tensors():
            x[b] = x[a]
        if self.one_page_each:
            self.pages.copy(a + 1, b + 1)
        else:
            self.host_table[target] = self.host_table[source]
        self.release(source)

    def assign(self, slots: list[int], jobs: list[Job]) -> None:
        """Write the state of new jobs."""
        b, at = self.state, to_device(slots, self.device)
        hows = [j.how for j in jobs]
        integers = [
            [j.next_input for j in jobs], [j.prefix_len for j in jobs], [len(j.context) - 1 + len(j.tokens) for j in jobs],
            [len(j.tokens) for j in jobs], [h.max_tokens for h in hows], [j.key for j in jobs],
            [h.top_k if h.temperature else 1 for h in hows],
        ]  # fmt: skip
        floats = [[1 / (h.temperature or 1.0) for h in hows], [h.top_p for h in hows], [h.min_p for h in hows]]
        columns = (
            *to_device(np.array(integers), self.device),
            *to_device(np.array(floats, dtype=np.float32), self.device),
        )
        into = (b.token, b.prefix_len, b.cache_len, b.num_generated, b.max_tokens, b.key, b.top_k,
                b.inv_temperature, b.top_p, b.min_p)  # fmt: skip
        for to, values in zip(into, columns, strict=True):
            to[at] = values
        b.alive.index_fill_(0, at, True)
        b.stopped.index_fill_(0, at, False)
        b.raw_logp[at] = to_device([h.raw_logp for h in hows], self.device)
        for slot, job in zip(slots, jobs, strict=True):
            if len(job.tokens):
                b.tokens[slot, : len(job.tokens)] = job.tokens.to(self.device)
                b.logp[slot, : len(job.logp)] = job.logp.to(self.device)
        self.write_table([(slot, job.pages) for slot, job in zip(slots, jobs, strict=True)])

    def release(self, slots: list[int]) -> None:
        """Slots without a job: they are stepped too, over one position of the null page."""
        at = to_device(slots, self.device, torch.long)
        for x in (self.state.alive, self.state.cache_len, self.state.prefix_len):
            x.index_fill_(0, at, 0)
        if not self.one_page_each and slots:
            self.host_table[slots] = 0
            self.block_table.copy_(to_device(self.host_table, self.device))

    def write_table(self, rows: list[tuple[int, list[int]]]) -> None:
        """Write the pages of these slots into the block table."""
        if self.one_page_each or not rows:
            return
        for slot, pages in rows:
            self.host_table[slot, : len(pages)] = pages
            self.host_table[slot, len(pages) :] = 0
        self.block_table.copy_(to_device(self.host_table, self.device))


def _rounded(spans: int, programs: int) -> int:
    """The next of programs x 1, 1.5, 2, 3, 4, 6, ...: each length is a graph of its own."""
    size, after = programs, programs * 3 // 2
    while size < spans:
        size, after = after, 2 * size
    return size
