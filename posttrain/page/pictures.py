"""Pictures for the page, as data: addresses: those that were observed, which the database has, and those that a policy drew, from its actions."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from posttrain.core.codec import read
from posttrain.core.png import SIGNATURE, brightness, png
from posttrain.page.series import finite
from posttrain.runs.reader import Reader

SIDE = 64  # pixels of a picture that was drawn
MOST = 64  # pictures of one turn
_LIST_BYTES = 1 << 20  # of an answer's actions whose last picture is shown in a list
Picture = dict[str, Any]


def observed(reader: Reader, key: tuple[str, int, int], sample: int) -> dict[int, list[Picture]]:
    """turn -> the pictures that were seen before it; key: phase, step as the store counts, group. Those shown to all answers are of sample -1."""
    if not reader.has("pictures"):
        return {}
    query = (
        "SELECT turn, name, width, height, low, high, png FROM pictures WHERE phase = ? AND step = ? AND group_index = ? "
        "AND sample_index IN (-1, ?) ORDER BY turn, sample_index, name, place LIMIT ?"
    )
    out: dict[int, list[Picture]] = {}
    for row in reader.db.execute(query, (*key, sample, MOST)):
        if not isinstance(row["png"], bytes) or not row["png"].startswith(SIGNATURE):
            continue  # a damaged file
        found = {k: row[k] for k in ("name", "width", "height")} | {k: finite(row[k]) for k in ("low", "high")}
        out.setdefault(row["turn"], []).append(found | {"src": address(row["png"])})
    return out


def shape_of(reader: Reader, phase: str, role: str) -> tuple[int, ...] | None:
    """The shape of a role's actions, where they are pictures."""
    if not reader.has("shapes"):
        return None
    row = reader.db.execute("SELECT shape FROM shapes WHERE phase = ? AND role = ?", (phase, role)).fetchone()
    try:
        shape = json.loads(row[0]) if row else None
    except (ValueError, TypeError, RecursionError):  # a damaged file
        shape = None
    good = isinstance(shape, list) and len(shape) in (2, 3) and all(isinstance(n, int) and n > 0 for n in shape)
    return tuple(shape) if good and shape else None


def drawn(actions: list[Any], shape: tuple[int, ...] | None) -> list[Picture] | None:
    """Actions as pictures, all on one scale of brightness, that of the last one; None where they are none. More than MOST: every k-th."""
    if not actions or not isinstance(actions[0], list):
        return None
    shape = dimensions(actions[0]) if shape is None else shape
    if shape is None or len(flat(actions[0])) != math.prod(shape):
        return None
    every = -(-len(actions) // MOST)
    places = list(range(len(actions) - 1, -1, -every))[::-1]  # the last one is what it was all about
    pixels = [(at, *small(flat(actions[at]), shape)) for at in places]
    low, high = brightness(pixels[-1][1])
    return [
        {"at": at, "width": w, "height": h, "low": finite(low), "high": finite(high), "src": address(png(levels(values, low, high), w, h, c))}
        for at, values, w, h, c in pixels
    ]  # fmt: skip


def last_drawn(reader: Reader, rows: list[dict[str, Any]]) -> dict[int, Picture]:
    """id -> the last picture that an answer has drawn, where its role draws pictures and says of which shape."""
    kinds = {(row["phase"], row["role"]) for row in rows}
    shapes = {kind: shape for kind in kinds if (shape := shape_of(reader, *kind)) is not None}
    out = {}
    for row in rows if shapes else ():
        query = "SELECT tokens FROM turns WHERE id = ? AND length(tokens) < ? ORDER BY turn DESC LIMIT 1"
        blob = reader.db.execute(query, (row["id"], _LIST_BYTES)).fetchone()
        actions = read(blob[0]) if blob else None
        if (shape := shapes.get((row["phase"], row["role"]))) and (made := drawn((actions or [])[-1:], shape)):
            out[row["id"]] = made[0]
    return out


def dimensions(action: Any) -> tuple[int, ...] | None:
    """The shape of a nested list that can be a picture: two dimensions, or three of which one counts colours."""
    out: list[int] = []
    while isinstance(action, list) and action:
        out.append(len(action))
        action = action[0]
    fits = len(out) == 2 or (len(out) == 3 and (out[0] in (1, 3) or out[-1] in (1, 3)))
    return tuple(out) if fits and min(sorted(out)[-2:]) >= 4 else None


def flat(x: Any) -> list[float]:
    return [v for part in x for v in flat(part)] if isinstance(x, list) and x and isinstance(x[0], list) else x


def small(values: list[float], shape: tuple[int, ...]) -> tuple[list[float], int, int, int]:
    """Every k-th pixel in the order of a file, width, height, channels."""
    planes = len(shape) == 3 and shape[0] in (1, 3)
    tall, wide = shape[1:] if planes else shape[:2]
    channels = 1 if len(shape) == 2 else shape[0] if planes else shape[-1]
    k = -(-max(tall, wide) // SIDE)
    ys, xs = range(0, tall, k), range(0, wide, k)
    kept = min(channels, 3) if channels in (1, 3, 4) else 1
    row, pixel, colour = (wide, 1, tall * wide) if planes else (wide * channels, channels, 1)
    found = [values[y * row + x * pixel + c * colour] for y in ys for x in xs for c in range(kept)]
    return found, len(xs), len(ys), kept


def levels(values: list[float], low: float, high: float) -> bytes:
    """0 is black, 255 white; what is no number is black."""
    scale = 255 / (high - low)
    return bytes(min(255, max(0, round((v - low) * scale))) if v - v == 0 else 0 for v in values)


def address(file: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(file).decode()
