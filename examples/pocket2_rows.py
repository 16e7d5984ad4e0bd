"""pocket-2's training rows: conversations packed in rows, written by workers or by the trainer itself, and the loss of them.

On a GPU a batch is read as it is packed, with a mask that keeps conversations apart. On a CPU the square of attention over whole rows is
what costs: there a batch is taken apart again, `pieces` holds its conversations sorted by length, and the loss is the same.
"""

from __future__ import annotations

import multiprocessing as mp
import queue

import numpy as np
import torch
import torch.nn.functional as F

from examples.pocket2_corpus import block, encoded, tokenizer_of
from posttrain.models.decoder import Decoder

LENGTH = 385  # tokens of a row: a few whole conversations, none cut, none seeing another; 384 are read
ROWS = 512  # in one delivery of a worker
POOL = 60_000  # rows that are kept to be drawn from
PIECE = 1536  # tokens read at once on a CPU, with their padding: what its caches hold
OBSERVED = 0.1  # weight in the loss of what the model does not say itself
Rows = np.ndarray  # (n, 3, LENGTH) int16: tokens, whether learned, the conversation's number in its row (-1: padding)


def filled(conversations: list[tuple[list[int], list[bool]]]) -> Rows:
    """Conversations in rows, one after the other; one that is longer than a row is left out."""
    rows = [_empty()]
    at = number = 0
    for ids, learned in conversations:
        if len(ids) > LENGTH:
            continue
        if at + len(ids) > LENGTH:
            rows.append(_empty())
            at = number = 0
        rows[-1][:, at : at + len(ids)] = ids, learned, [number] * len(ids)
        at, number = at + len(ids), number + 1
    return np.stack(rows[:-1]) if len(rows) > 1 else np.stack(rows)


def _empty() -> np.ndarray:
    row = np.zeros((3, LENGTH), np.int16)
    row[2] = -1
    return row


def write_rows(worker: int, seed: int, workers: int, out: mp.Queue[Rows]) -> None:
    """A worker: its blocks of the corpus as rows, for ever."""
    tokenizer, number = tokenizer_of(), worker
    while True:
        made = filled(encoded(tokenizer, [said for said, _ in block(seed, number)]))
        for start in range(0, len(made), ROWS):
            out.put(made[start : start + ROWS])
        number += workers


class Stream:
    """Batches drawn from a pool that workers refill, the oldest row first."""

    def __init__(self, workers: int, seed: int) -> None:
        context = mp.get_context("spawn")
        self.queue: mp.Queue[Rows] = context.Queue(maxsize=4 * workers)
        self.workers = [
            context.Process(target=write_rows, args=(w, seed, workers, self.queue), daemon=True) for w in range(workers)
        ]
        for worker in self.workers:
            worker.start()
        self.pool = np.zeros((POOL, 3, LENGTH), np.int16)
        self.written = self.read = 0
        self.draw = np.random.default_rng(seed)

    def next(self, batch: int) -> torch.Tensor:
        """A batch from the pool, with what has been written meanwhile; only the first one waits, until there is enough of it."""
        self._take()
        while self.written < 2 * batch:
            self._keep(self.queue.get(timeout=300))
        self.read += batch
        return torch.from_numpy(self.pool[self.draw.integers(0, min(self.written, POOL), batch)])

    def _take(self) -> None:
        """Everything that has been delivered."""
        while True:
            try:
                self._keep(self.queue.get_nowait())
            except queue.Empty:
                return

    def _keep(self, rows: Rows) -> None:
        """In the places of the oldest."""
        self.pool[(self.written + np.arange(len(rows))) % POOL] = rows
        self.written += len(rows)

    def close(self) -> None:
        for worker in self.workers:
            worker.terminate()


class Written:
    """Batches that the trainer writes itself when it needs them, each row read once; `number` is the block to be written next."""

    def __init__(self, seed: int, number: int = 0) -> None:
        self.seed, self.number = seed, number
        self.tokenizer = tokenizer_of()
        self.rows = np.zeros((0, 3, LENGTH), np.int16)
        self.written = self.read = 0

    def next(self, batch: int) -> torch.Tensor:
        while len(self.rows) < batch:
            made = filled(encoded(self.tokenizer, [said for said, _ in block(self.seed, self.number)]))
            self.rows, self.number, self.written = (
                np.concatenate([self.rows, made]),
                self.number + 1,
                self.written + len(made),
            )
        out, self.rows, self.read = self.rows[:batch], self.rows[batch:], self.read + batch
        return torch.from_numpy(out.copy())

    def close(self) -> None:
        """Nothing runs."""


def pieces(rows_B3L: torch.Tensor, size: int = PIECE) -> list[torch.Tensor]:
    """The conversations of packed rows, one to a row, those of about one length together: (n, 3, T) of at most `size` tokens each, or one row."""
    alone = [row[:, row[2] == k] for row in rows_B3L for k in range(int(row[2].max()) + 1)]
    alone.sort(key=lambda c: c.shape[1])
    cut: list[list[torch.Tensor]] = [[]]
    for c in alone:
        if cut[-1] and (len(cut[-1]) + 1) * c.shape[1] > size:
            cut.append([])
        cut[-1].append(c)
    return [_padded(some) for some in cut]


def _padded(some: list[torch.Tensor]) -> torch.Tensor:
    out = torch.zeros(len(some), 3, max(c.shape[1] for c in some), dtype=some[0].dtype)
    out[:, 2] = -1
    for row, c in zip(out, some, strict=True):
        row[:2, : c.shape[1]], row[2, : c.shape[1]] = c[:2], 0
    return out


def weights_of(rows_B3L: torch.Tensor, observed: float = OBSERVED) -> torch.Tensor:
    """What each next token counts: the assistant's in full, others `observed`, padding and another conversation's first nothing."""
    learned, part = rows_B3L[:, 1, 1:], rows_B3L[:, 2, :-1]
    return (observed + (1 - observed) * learned) * (rows_B3L[:, 2, 1:] == part) * (part >= 0)


def loss_of(model: Decoder, rows_B3L: torch.Tensor) -> torch.Tensor:
    """Next-token loss over conversations packed in rows."""
    tokens, part, target = rows_B3L[:, 0, :-1], rows_B3L[:, 2, :-1], rows_B3L[:, 0, 1:]
    # rotary positions are relative, so a conversation may stand anywhere in its row
    logits = model.logits(model.hidden(tokens, segments_BT=part)).float()
    weight = weights_of(rows_B3L)
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return (loss * weight.flatten()).sum() / weight.sum()


def piece_loss(model: Decoder, piece_B3T: torch.Tensor, observed: float = OBSERVED) -> torch.Tensor:
    """The weighted sum of a piece; conversations begin their rows, so causality is mask enough, and only what counts has logits."""
    weight_BT = weights_of(piece_B3T, observed)
    counts = weight_BT > 0
    h = model.hidden(piece_B3T[:, 0, :-1])[counts]
    loss = F.cross_entropy(model.logits(h).float(), piece_B3T[:, 0, 1:][counts], reduction="none")
    return (loss * weight_BT[counts]).sum()


def backward_in_pieces(model: Decoder, rows_B3L: torch.Tensor, observed: float = OBSERVED) -> float:
    """The loss of a batch, and its gradient, piece by piece."""
    made = pieces(rows_B3L)
    total = sum(float(weights_of(p, observed).sum()) for p in made)
    value = 0.0
    for p in made:
        loss = piece_loss(model, p, observed) / total
        loss.backward()
        value += loss.item()
    return value
