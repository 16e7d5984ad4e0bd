"""Tensors of all kinds in one flat piece of memory, to be sent or opened as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from posttrain.distributed.versions import DTYPES

_ALIGN = 256  # bytes
_NAMES = {kind: name for name, kind in DTYPES.items()}
Layout = list[list[Any]]  # of each tensor: name, dtype, shape, where it begins


def laid(table: dict[str, Tensor]) -> Layout:
    """Where each tensor lies in one flat piece of memory."""
    out: Layout = []
    for name, x in table.items():
        out.append([name, _NAMES[x.dtype], list(x.shape), -(-size_of(out) // _ALIGN) * _ALIGN])
    return out


def size_of(layout: Layout) -> int:
    """Bytes in all."""
    if not layout:
        return 0
    _, kind, shape, at = layout[-1]
    return int(at) + _size(kind, shape)


def views(flat: Tensor, layout: Layout) -> Iterator[tuple[str, Tensor]]:
    for name, kind, shape, at in layout:
        yield name, flat[at : at + _size(kind, shape)].view(DTYPES[kind]).view(shape)


def _size(kind: str, shape: list[int]) -> int:
    return torch.Size(shape).numel() * DTYPES[kind].itemsize
