"""Many streams of numbers at once, as arrays and as the bytes that the database keeps: what can be done for all of a step's answers
together is, because storing shares the interpreter with training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.core.codec import encode

Array = np.ndarray[Any, Any]
_ID_16 = 1 << 16


def arrays(streams: Sequence[Tensor | None]) -> list[Array | None]:
    """Each stream as an array; streams of one kind are read in one go."""
    there = [x for x in streams if x is not None]
    if not alike(there):
        return [None if x is None else array(x) for x in streams]
    return _cut(array(torch.cat(there)), streams)


def blobs(streams: Sequence[Tensor | None], half: bool = False) -> list[bytes | None]:
    """Each stream as `encode` writes it; those of one kind are brought into their final type together."""
    there = [x for x in streams if x is not None]
    if not alike(there):
        return [None if x is None else encode(array(x), half) for x in streams]
    whole = array(torch.cat(there))
    if half and whole.dtype.kind == "f":
        whole = whole.clip(-65504, 65504).astype("float16")
    elif whole.dtype.kind == "i" and whole.size and whole.min() >= 0 and whole.max() < _ID_16:
        whole = whole.astype("uint16")  # as each of them would be
    if whole.dtype.kind == "u":  # an empty one has no largest id, so it keeps its type
        empty = encode(array(there[0][:0]))
        return [x if x is None else encode(x) if x.size else empty for x in _cut(whole, streams)]
    return [None if x is None else encode(x) for x in _cut(whole, streams)]


def alike(streams: Sequence[Tensor]) -> bool:
    """Rows of numbers of one type on one device."""
    if not streams:
        return False
    kind, place = streams[0].dtype, streams[0].device
    return all(x.dim() == 1 and x.dtype is kind and x.device == place for x in streams)


def array(x: Tensor) -> Array:
    x = x.detach().cpu()
    found: Array = (x.float() if x.dtype is torch.bfloat16 else x).contiguous().numpy()
    return found


def _cut(whole: Array, streams: Sequence[Tensor | None]) -> list[Array | None]:
    ends = pairwise(accumulate((0 if x is None else x.shape[0] for x in streams), initial=0))
    return [None if x is None else whole[a:b] for x, (a, b) in zip(streams, ends, strict=True)]
