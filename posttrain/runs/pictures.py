"""Pictures that a policy was shown, as small PNGs: at most PICTURES a step, SIDE pixels a side, those of the first answers first.

The first dimension of a stream counts its pictures (`core/turn.py`), so a stream of pictures is (N, H, W), (N, C, H, W) or (N, H, W, C). A
policy whose pictures are flat vectors says their shape: `picture_shape = (8, 8)`. Pictures that a policy draws are its actions, which are
stored as they are; the page draws them from there.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from posttrain.core.png import brightness, png
from posttrain.core.turn import Observation
from posttrain.core.types import Group
from posttrain.runs.streams import array

PICTURES = 48  # of a step
SIDE = 64  # pixels
_FEW = 8  # pictures of one stream of one turn
Shape = tuple[int, ...]  # (H, W), (C, H, W) or (H, W, C)
Shapes = Mapping[str, Shape]  # of flat pictures, by role


def seen(streams: Mapping[str, Tensor], shape: Shape | None) -> dict[str, Tensor]:
    """Those of these streams that are pictures, each (N, C, H, W) and small; what is kept of it is a copy of its own."""
    found = {name: pictures(x, shape) for name, x in streams.items()}
    return {name: small(x[:_FEW]) for name, x in found.items() if x is not None}


def pictures(x: Tensor, shape: Shape | None = None) -> Tensor | None:
    """A stream as (N, C, H, W) with one channel or three; None where it is something else."""
    if shape is not None and x.dim() == 2 and x.shape[-1] == math.prod(shape):
        x = x.reshape(-1, *shape)
    x = x.unsqueeze(1) if x.dim() == 3 else x
    if x.dim() != 4 or not x.numel() or x.is_complex():
        return None
    if x.shape[1] not in (1, 3) and x.shape[-1] in (1, 3, 4):
        x = x.movedim(-1, 1)
    x = x[:, :3] if x.shape[1] == 4 and not x.is_floating_point() else x  # what is see-through is drawn
    high, wide = x.shape[-2:]
    fits = x.shape[1] in (1, 3) and min(high, wide) >= 4 and max(high, wide) <= 4 * min(high, wide)
    return x if fits else None


def small(x: Tensor) -> Tensor:
    """Every k-th pixel, so that no side is longer than SIDE."""
    k = -(-max(x.shape[-2:]) // SIDE)
    return x[..., ::k, ::k].clone() if k > 1 or x.untyped_storage().nbytes() > 2 * x.nbytes else x


class Held:
    """What of a step's observations is held until it is written: ids, and pictures while there is room for more of them."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes, self.room = shapes, PICTURES
        self.known: dict[tuple[int, ...], dict[str, Tensor]] = {}  # the same tensors are shown to many answers

    def __call__(self, observation: Observation, role: str) -> Observation:
        same = tuple(map(id, observation.streams.values()))
        if same not in self.known:
            kept = seen(observation.streams, self.shapes.get(role)) if self.room > 0 else {}
            self.room -= sum(map(len, kept.values()))
            self.known[same] = kept
        return Observation(observation.tokens, self.known[same])


def insert_pictures(db: sqlite3.Connection, key: tuple[str, int], groups: list[Group], shapes: Shapes) -> int:
    """Write those of a step (phase, step); returns their bytes. What all answers to a prompt were shown is written once, as of sample -1."""
    rows: list[tuple[Any, ...]] = []
    for at, role, streams in shown(groups):
        for name, x in seen(streams, shapes.get(role)).items():
            rows += pngs((*key, *at), name, x)[: PICTURES - len(rows)]
        if len(rows) >= PICTURES:
            break
    if rows:
        db.executemany(f"INSERT OR REPLACE INTO pictures VALUES ({','.join('?' * len(rows[0]))})", rows)
    return sum(len(row[-1]) for row in rows)


def shown(groups: list[Group]) -> Iterator[tuple[tuple[int, int, int], str, Mapping[str, Tensor]]]:
    """(group, sample, turn), role and streams of every observation that has any, those of a group's first turn once if all are equal."""
    for g, group in enumerate(groups):
        firsts = [r.turns[0].observation for r in group.rollouts if r.turns]
        equal = bool(firsts) and bool(firsts[0].streams) and all(o.key == firsts[0].key for o in firsts)
        for s, r in enumerate(group.rollouts):
            for k, t in enumerate(r.turns):
                once = equal and k == 0
                if t.observation.streams and not (once and s):
                    yield (g, -1 if once else s, k), r.role, t.observation.streams


def pngs(at: tuple[Any, ...], name: str, x: Tensor) -> list[tuple[Any, ...]]:
    """place, width, height, the numbers that are black and white, the file."""
    numbers = array(x).astype("float32")
    low, high = (0.0, 255.0) if str(x.dtype) == "torch.uint8" else brightness(numbers[-1].reshape(-1).tolist())
    level = ((numbers - low) / (high - low)).clip(0, 1)
    level[level != level] = 0
    bytes_ = (255 * level + 0.5).astype("uint8").transpose(0, 2, 3, 1)
    count, tall, wide, channels = bytes_.shape
    return [(*at, name, n, wide, tall, low, high, png(bytes_[n].tobytes(), wide, tall, channels)) for n in range(count)]
