"""A model of transformers while it answers one request: constraints are applied to its logits, progress is told, and it can be
interrupted between two tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posttrain.inference.jobs import Job
from posttrain.inference.masks import mask_logits


class Interrupted(Exception):
    """No client waits for the answers any more."""


class WatchedCache:
    """A cache that knows which answer each of its rows is of."""

    def __init__(self, cache: Any, rows: Tensor) -> None:
        self.cache, self.rows = cache, rows

    def select(self, rows: Tensor) -> None:
        self.cache.select(rows)
        self.rows = self.rows[rows.to(self.rows.device)]


class Watched:
    """The model that `models.sampling.generate` is given: one row per job, in their order.

    tell: called before every token with the tokens of each answer so far; what it raises ends the generation
    """

    def __init__(
        self, model: Any, jobs: Sequence[Job], stop_ids: Collection[int], tell: Callable[[list[list[int]]], None]
    ) -> None:
        self.model, self.jobs, self.stop_ids, self.tell = model, jobs, stop_ids, tell
        self.tokens: list[list[int]] = [[] for _ in jobs]
        self.cache: WatchedCache | None = None

    def parameters(self) -> Iterator[nn.Parameter]:
        found: Iterator[nn.Parameter] = self.model.parameters()
        return found

    def prefill(
        self, tokens_BT: Tensor, lengths_B: Tensor, slots: int, seen: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, WatchedCache]:
        h_BD, cache = self.model.prefill(tokens_BT, lengths_B, slots, **({"seen": seen} if seen else {}))
        self.cache = WatchedCache(cache, torch.arange(len(tokens_BT)))
        return h_BD, self.cache

    def step(self, tokens_B: Tensor, cache: WatchedCache) -> Tensor:
        for row, token in zip(cache.rows.tolist(), tokens_B.tolist(), strict=True):
            if self._running(row):
                self.tokens[row].append(token)
                constraint = self.jobs[row].constraint
                if constraint is not None:
                    constraint.accept(token)
        self.tell(self.tokens)
        h_BD: Tensor = self.model.step(tokens_B, cache.cache)
        return h_BD

    def logits(self, h_BD: Tensor) -> Tensor:
        logits_BV: Tensor = self.model.logits(h_BD)
        rows = [] if self.cache is None else self.cache.rows.tolist()
        words = np.full((len(rows), -(-logits_BV.shape[1] // 32)), -1, dtype=np.int32)
        masked = False
        for at, row in enumerate(rows):
            constraint = self.jobs[row].constraint
            if constraint is not None and self._running(row):
                masked, words[at] = True, 0
                constraint.fill(words[at])
        return mask_logits(logits_BV, torch.from_numpy(words).to(logits_BV.device)) if masked else logits_BV

    def _running(self, row: int) -> bool:
        """Answers that have ended may stay in the batch for a while."""
        return not self.tokens[row] or self.tokens[row][-1] not in self.stop_ids
