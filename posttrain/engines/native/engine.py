"""The rollout engine: a fixed number of slots, refilled as answers end, driven by one captured graph on a GPU.

A prompt is read once for all its answers and its keys and values are copied into their slots. A step reads one token a slot,
chooses the next on the device, notes token and log-probability, and retires slots that ended; the host looks only every few
steps. Without a GPU the same code runs step by step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.engines.native.choose import choose
from posttrain.engines.native.fused import Fused
from posttrain.engines.sampling import Sample, Sampling
from posttrain.models.decoder import Decoder

STRIDE = 16  # steps between two looks of the host
PREFILL_TOKENS = 65_536  # prompts are read in pieces of about this many tokens


@dataclass(frozen=True)
class Job:
    """One answer to make: which prompt, which of its answers, and its random identity."""

    prompt: int
    sample: int
    key: int


class Slots:
    """The device's memory of answers in progress, and the step that moves them all on by one token."""

    def __init__(self, fused: Fused, count: int, length: int, how: Sampling, stop_ids: Sequence[int]) -> None:
        self.fused, self.count, self.length, self.how = fused, count, length, how
        weight = fused.model.lm_head.weight
        self.device = weight.device
        shape = (count, fused.kv_heads, length, fused.head_dim)
        layers = range(len(fused.layers))
        self.keys = [torch.zeros(shape, dtype=weight.dtype, device=self.device) for _ in layers]
        self.values = [torch.zeros(shape, dtype=weight.dtype, device=self.device) for _ in layers]
        self.token, self.filled, self.made, self.key = (
            torch.zeros(count, dtype=torch.long, device=self.device) for _ in range(4)
        )
        self.alive = torch.zeros(count, dtype=torch.bool, device=self.device)
        self.stopped = torch.zeros_like(self.alive)
        self.tokens = torch.zeros(count, how.max_tokens + 1, dtype=torch.long, device=self.device)
        self.logp = torch.zeros(count, how.max_tokens + 1, device=self.device)
        self.cold = torch.tensor(1.0 / (how.temperature or 1.0), device=self.device)
        self.stops = torch.tensor(list(stop_ids), device=self.device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def step(self) -> None:
        """One token for every slot; slots that are not alive compute too, and nothing of theirs is kept."""
        used = self.length if self.device.type == "cuda" else int(self.filled.max()) + 1
        keys, values = self.keys, self.values
        if used < self.length:
            keys, values = [k[:, :, :used] for k in keys], [v[:, :, :used] for v in values]
        logits = self.fused.step(self.token, self.filled, keys, values)
        token, logp = choose(logits, self.key, self.made, self.cold, self.how)
        column = torch.where(self.alive, self.made, self.how.max_tokens).unsqueeze(-1)  # the last column is for nobody
        self.tokens.scatter_(1, column, token.unsqueeze(-1))
        self.logp.scatter_(1, column, logp.unsqueeze(-1))
        self.token.copy_(torch.where(self.alive, token, self.token))
        self.filled += self.alive
        self.made += self.alive
        ended = torch.isin(token, self.stops) & self.alive
        self.stopped |= ended
        self.alive &= ~ended & (self.made < self.how.max_tokens)

    def capture(self) -> None:
        """Record the step once, so that the host launches one graph instead of hundreds of kernels."""
        state = (self.token, self.filled, self.made, self.alive, self.stopped)
        kept = [x.clone() for x in state]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()
        for x, was in zip(state, kept, strict=True):
            x.copy_(was)

    def run(self, steps: int) -> None:
        if self.device.type == "cuda" and self.graph is None:
            self.capture()
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self.step()


class Engine:
    """Rollouts from a decoder; its slots and captured graph are kept between calls."""

    def __init__(self, model: Decoder, most: int = 0) -> None:
        self.model = model
        self.most = most or (1024 if model.lm_head.weight.is_cuda else 256)  # slots, if memory allows
        self.fused: Fused | None = None
        self.slots: Slots | None = None

    @torch.no_grad()
    def generate(
        self, contexts: Sequence[Tensor], keys: Sequence[Sequence[int]], how: Sampling, stop_ids: Sequence[int]
    ) -> list[list[Sample]]:
        """For each context, one answer a key; the same answers as `engines.sampling.generate`."""
        if not contexts:
            return []
        queue = deque(Job(p, i, key) for p, row in enumerate(keys) for i, key in enumerate(row))
        slots = self._slots(contexts, len(queue), how, stop_ids)
        out: list[list[Sample | None]] = [[None] * len(row) for row in keys]
        owner: list[Job | None] = [None] * slots.count
        free = list(range(slots.count))
        while queue or len(free) < slots.count:
            if queue and free:
                taken = [(free.pop(), queue.popleft()) for _ in range(min(len(free), len(queue)))]
                self._fill(slots, contexts, taken)
                for slot, job in taken:
                    owner[slot] = job
            slots.run(STRIDE if slots.graph is not None or slots.device.type == "cuda" else 1)
            free += self._harvest(slots, owner, out)
        return out  # type: ignore[return-value]

    def _slots(self, contexts: Sequence[Tensor], jobs: int, how: Sampling, stop_ids: Sequence[int]) -> Slots:
        """Memory for the answers: as many slots as there are answers, or as the device has room for."""
        length = -(-(max(len(c) for c in contexts) + how.max_tokens + 1) // 64) * 64
        old, wanted = self.slots, min(jobs, self.most)
        asked = (how, list(stop_ids))
        same = old is not None and (old.how, old.stops.tolist()) == asked
        if (
            old is not None
            and self.fused is not None
            and same
            and old.length >= length
            and wanted <= old.count <= 2 * wanted
        ):
            self.fused.refresh()
            return old
        self.slots = None  # its memory goes before the new one is measured
        self.fused = Fused(self.model, length)
        c, weight = self.model.config, self.model.lm_head.weight
        room = 2 * c.num_layers * c.num_kv_heads * c.head_dim * length * weight.element_size()
        if weight.is_cuda:
            free, _ = torch.cuda.mem_get_info()
            wanted = max(1, min(wanted, int(0.7 * free / room)))
        self.slots = Slots(self.fused, wanted, length, how, stop_ids)
        return self.slots

    def _fill(self, slots: Slots, contexts: Sequence[Tensor], taken: list[tuple[int, Job]]) -> None:
        """Read the prompts of these jobs (all but the last token, which the step reads) and copy them into the slots."""
        prompts = sorted({job.prompt for _, job in taken}, key=lambda p: len(contexts[p]))
        longest = max(len(contexts[p]) for p in prompts)
        per_call = max(1, PREFILL_TOKENS // longest)
        for start in range(0, len(prompts), per_call):
            part = {p: row for row, p in enumerate(prompts[start : start + per_call])}
            mine = [(slot, job) for slot, job in taken if job.prompt in part]
            self._read(slots, contexts, part, mine)
        at = torch.tensor([slot for slot, _ in taken], device=slots.device)
        length = torch.tensor([len(contexts[job.prompt]) - 1 for _, job in taken], device=slots.device)
        slots.token[at] = torch.tensor([int(contexts[job.prompt][-1]) for _, job in taken], device=slots.device)
        slots.key[at] = torch.tensor([job.key for _, job in taken], dtype=torch.int64, device=slots.device)
        slots.filled[at], slots.made[at], slots.alive[at], slots.stopped[at] = length, 0, True, False

    def _read(
        self, slots: Slots, contexts: Sequence[Tensor], part: dict[int, int], mine: list[tuple[int, Job]]
    ) -> None:
        lengths = torch.tensor([max(len(contexts[p]) - 1, 1) for p in part])
        padded = torch.zeros(len(part), int(lengths.max()), dtype=torch.long)
        for p, row in part.items():
            padded[row, : len(contexts[p]) - 1] = contexts[p][:-1]
        _, cache = self.model.prefill(padded.to(slots.device), lengths.to(slots.device), padded.shape[1])
        at = torch.tensor([slot for slot, _ in mine], device=slots.device)
        rows = torch.tensor([part[job.prompt] for _, job in mine], device=slots.device)
        for mine_k, mine_v, k, v in zip(slots.keys, slots.values, cache.keys, cache.values, strict=True):
            mine_k[at, :, : padded.shape[1]] = k[rows]
            mine_v[at, :, : padded.shape[1]] = v[rows]

    def _harvest(self, slots: Slots, owner: list[Job | None], out: list[list[Sample | None]]) -> list[int]:
        """Answers that have ended, off the device; returns the slots that are free again."""
        alive = slots.alive.tolist()
        ended = [s for s, job in enumerate(owner) if job is not None and not alive[s]]
        if not ended:
            return []
        at = torch.tensor(ended, device=slots.device)
        tokens, logp = slots.tokens[at].cpu(), slots.logp[at].cpu()
        made, stopped = slots.made[at].tolist(), slots.stopped[at].tolist()
        for i, s in enumerate(ended):
            job = owner[s]
            assert job is not None
            out[job.prompt][job.sample] = Sample(tokens[i, : made[i]].clone(), logp[i, : made[i]].clone(), stopped[i])
            owner[s] = None
        return ended
