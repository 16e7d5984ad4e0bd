"""A small picture as PNG, with the standard library alone: a header, the rows as zlib packs them, an end."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR = {1: 0, 3: 2}  # channels -> PNG's kind of colour: grey, red-green-blue
RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))  # of numbers that are pixels, the usual ones first
_INSIDE = 0.8  # share of the numbers that must lie in a range


def png(pixels: bytes, width: int, height: int, channels: int = 1) -> bytes:
    """Rows from the top, pixels from the left, a byte for each channel (1: grey, 3: red, green, blue)."""
    line = width * channels
    if channels not in _COLOUR or len(pixels) != line * height or not line * height:
        raise ValueError(f"{len(pixels)} bytes are no picture of {width} x {height} pixels with {channels} channels")
    rows = b"".join(b"\0" + pixels[y * line : (y + 1) * line] for y in range(height))  # 0: a row as it is
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOUR[channels], 0, 0, 0)
    chunks = (_chunk(b"IHDR", head), _chunk(b"IDAT", zlib.compress(rows)), _chunk(b"IEND", b""))
    return SIGNATURE + b"".join(chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def brightness(values: Sequence[float]) -> tuple[float, float]:
    """The numbers that are black and white: the first usual range that holds four fifths of these, else the least and the greatest."""
    for low, high in RANGES:
        if sum(low <= v <= high for v in values) >= _INSIDE * len(values):
            return low, high
    known = [v for v in values if v - v == 0]  # neither infinite nor NaN
    return (min(known), max(known)) if known and min(known) < max(known) else (0.0, 1.0)
