"""How the rows of a step are cut: into minibatches, one update each, and those into micro-batches, one pass through the model each.

Cut from the whole, by lengths and identities alone, so that the pieces are the same on any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from posttrain.core.batch import Batch


def minibatches(batch: Batch, count: int, draw: torch.Generator) -> Iterator[Tensor]:
    """Whole groups, shuffled by identity; the last pieces may be smaller, none is empty."""
    group_B = batch["group_B"]
    ids = torch.unique(group_B)
    order = torch.randperm(ids.numel(), generator=draw)
    for chunk in ids[order].tensor_split(min(count, ids.numel())):
        yield torch.isin(group_B, chunk).nonzero().squeeze(-1)


def micro_batches(batch: Batch, rows: Tensor, tokens: int) -> Iterator[Tensor]:
    """Pieces of at most so many padded actions, rows of like length together; pairs and lists are never cut apart."""
    length_B = batch["length_B"]
    together = units(batch, rows) if "chosen_P" in batch or "ranked_LK" in batch else list(rows.split(1))
    sized = sorted((int(length_B[u].max()), int(u[0]), u) for u in together)  # first rows differ: ties end there
    piece: list[Tensor] = []
    count = 0
    for longest, _, unit in sized:
        count += unit.numel()
        if piece and longest * count > tokens:
            yield torch.cat(piece)
            piece, count = [], unit.numel()
        piece.append(unit)
    if piece:
        yield torch.cat(piece)


def units(batch: Batch, rows: Tensor) -> list[Tensor]:
    """Rows that must stay together, those that a pair or a list joins; first rows first."""
    joined = (
        [*zip(batch["chosen_P"].tolist(), batch["rejected_P"].tolist(), strict=True)] if "chosen_P" in batch else []
    )
    joined += [tuple(i for i in some if i >= 0) for some in batch["ranked_LK"].tolist()] if "ranked_LK" in batch else []
    root = {i: i for i in rows.tolist()}

    def top(i: int) -> int:
        while root[i] != i:
            root[i] = i = root[root[i]]
        return i

    for some in joined:
        if all(i in root for i in some):
            tops = [top(i) for i in some]
            root.update(dict.fromkeys(tops, min(tops)))
    members: dict[int, list[int]] = {}
    for i in rows.tolist():
        members.setdefault(top(i), []).append(i)
    return [torch.tensor(some) for some in members.values()]
