"""How a run's database writes streams of numbers: compact bytes that come back as the lists they were.

A stream is one byte that says the kind of its numbers, then the numbers, little-endian:

    B  uint8      H  uint16     i  int32      q  int64      e  float16    f  float32    d  float64

Two prefixes may stand before it: `=` and a count (uint32), then one number: all are the same (masks, an answer's advantage);
`@`, the number of dimensions (uint8) and their sizes (uint32 each): actions that are vectors. Token ids are uint16 where they fit,
else int32. Reading needs nothing but the standard library, so viewers start without torch.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_KINDS = {
    "?": "B",
    "B": "B",
    "H": "H",
    "i": "i",
    "l": "q",
    "q": "q",
    "e": "e",
    "f": "f",
    "d": "d",
}  # numpy's letter -> ours
FIGURES = (
    "entropy",
    "ratio",
    "kl",
    "value",
    "versions",
)  # looked at, never learned from; a run of an earlier version may have fewer
STREAMS = ("tokens", "logp", "mask", "adv", *FIGURES)  # of the actions of a turn, as the table `turns` has them
_ID_16 = 1 << 16
_ID_32 = 1 << 31
_MOST = 1 << 24  # equal numbers of one stream: a few bytes from elsewhere must not become gigabytes


def encode(x: np.ndarray[Any, Any], half: bool = False) -> bytes:
    """An array as bytes; half: floats may be rounded to 16 bits (figures that are looked at, never learned from)."""
    if x.ndim != 1:
        return struct.pack(f"<cB{x.ndim}I", b"@", x.ndim, *x.shape) + encode(x.reshape(-1), half)
    if half and x.dtype.kind == "f":
        x = x.clip(-65504, 65504).astype("float16")
    elif x.dtype.kind == "i" and x.size:
        least, most = int(x.min()), int(x.max())
        x = (
            x.astype("uint16")
            if least >= 0 and most < _ID_16
            else x.astype("int32")
            if most < _ID_32 and least >= -_ID_32
            else x
        )
    raw = x.tobytes()
    kind = _KINDS[x.dtype.char].encode()
    if x.size > 4 and raw == raw[: x.itemsize] * x.size:
        return b"=" + struct.pack("<I", x.size) + kind + raw[: x.itemsize]
    return kind + raw


def decode(blob: bytes) -> list[Any]:
    """The list that was encoded."""
    if blob[:1] == b"@":
        shape = struct.unpack_from(f"<{blob[1]}I", blob, 2)
        return _nested(decode(blob[2 + 4 * blob[1] :]), shape)
    if blob[:1] == b"=":
        (count,) = struct.unpack_from("<I", blob, 1)
        if count > _MOST:
            raise ValueError(f"a stream of {count} equal numbers; at most {_MOST} are read")
        return decode(blob[5:])[:1] * int(count)
    kind = blob[:1].decode("latin-1")
    if kind not in _KINDS.values():
        raise ValueError(f"a stream of the kind {kind!r}; there are {' '.join(sorted(set(_KINDS.values())))}")
    return list(struct.unpack(f"<{(len(blob) - 1) // struct.calcsize('<' + kind)}{kind}", blob[1:]))


def read(value: Any) -> Any:
    """A stored value: bytes are a stream, text is JSON (as the first version of the database wrote streams), None is None."""
    return decode(value) if isinstance(value, bytes) else json.loads(value) if isinstance(value, str) else value


def turn(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table `turns` with its streams as lists."""
    return dict.fromkeys(FIGURES) | {k: read(v) if k in (*STREAMS, "seen") else v for k, v in row.items() if k != "id"}


def last_context(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Streams of a rollout's last context as one row: what was observed between its turns is among the tokens, outside the mask."""
    first = max((i for i, t in enumerate(turns) if not t["continues"]), default=0)
    context = turns[first:]
    out: dict[str, Any] = {"turns": len(turns)}
    for name in STREAMS:
        if all(t.get(name) is None for t in context):
            out[name] = None
            continue
        whole: list[Any] = []
        for k, t in enumerate(context):
            between = (t["seen"] or []) if k else []
            whole += between if name == "tokens" else [0 if name == "mask" else 0.0] * len(between)
            whole += t[name] if t.get(name) is not None else [0.0] * len(t["tokens"])
        out[name] = whole
    return out


def _nested(flat: list[Any], shape: tuple[int, ...]) -> list[Any]:
    if len(shape) <= 1:
        return flat
    size = math.prod(shape[1:])
    return [_nested(flat[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])]
