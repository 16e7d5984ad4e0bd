"""Values that may leave a sandbox: plain data as JSON with tags, and nothing else. No pickle, no repr, nothing is run.

This file is also sent into the sandbox, so it imports next to nothing: `json` alone would double the start of an interpreter. What is not plain data is named by
a number (`Ref`) and stays where it is. A subclass (Counter, a named tuple, an int that equals everything) leaves as the
plain data that it holds: its own methods are never called.
"""

from __future__ import annotations

import posix  # which `os` is made of: that takes a tenth of the start of an interpreter
from _json import encode_basestring_ascii as quoted

TYPE_CHECKING = False  # `typing` takes longer to import than most programs to run
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

DEEPEST = 60  # containers in containers
LARGEST = 1 << 20  # bytes of a frame


class Ref:
    """An object that stayed in the sandbox; equal to nothing but itself."""

    def __init__(self, number: int) -> None:
        self.number = number


def pack(value: Any, keep: Callable[[Any], int], depth: int = 0) -> Any:
    """The value as JSON; `keep` gives a number to what is not plain data."""
    if depth > DEEPEST:
        raise ValueError(f"a value of more than {DEEPEST} containers in containers")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if issubclass(kind, int):
        return int.__add__(value, 0)
    if issubclass(kind, float):
        return float.__add__(value, 0.0)
    if issubclass(kind, str):
        return str.__getitem__(value, slice(None))
    if issubclass(kind, (bytes, bytearray)):
        return {"b": bytes(memoryview(value)).hex()}
    if issubclass(kind, complex):
        return {"c": [complex.real.__get__(value), complex.imag.__get__(value)]}
    if issubclass(kind, dict):
        return {"d": [[pack(k, keep, depth + 1), pack(v, keep, depth + 1)] for k, v in list(dict.items(value))]}
    for base, tag in ((list, ""), (tuple, "t"), (set, "s"), (frozenset, "f")):
        if issubclass(kind, base):
            inside = [pack(x, keep, depth + 1) for x in base.__iter__(value)]
            return {tag: inside} if tag else inside
    return {"r": keep(value)}


def unpack(value: Any, found: Callable[[int], Any] = Ref, depth: int = 0) -> Any:
    """What was packed; ValueError for anything else. `found` turns the number of a Ref into what it stands for."""
    if depth > DEEPEST:
        raise ValueError(f"a value of more than {DEEPEST} containers in containers")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [unpack(x, found, depth + 1) for x in value]
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("no value")
    ((tag, inside),) = value.items()
    if tag == "b" and isinstance(inside, str):
        return bytes.fromhex(inside)
    if tag == "r" and type(inside) is int:
        return found(inside)
    if not isinstance(inside, list):
        raise ValueError("no value")
    try:
        if tag == "c":
            return complex(*map(float, inside))
        if tag == "d":
            return {unpack(k, found, depth + 1): unpack(v, found, depth + 1) for k, v in inside}
        return {"t": tuple, "s": set, "f": frozenset}[tag](unpack(x, found, depth + 1) for x in inside)
    except (TypeError, KeyError) as error:  # a set of lists, an unknown tag
        raise ValueError(f"no value: {error}") from None


def dumps(message: Any) -> bytes:
    """A message as JSON; ValueError where it is larger than a frame may be."""
    data = "".join(_pieces(message)).encode()
    if len(data) > LARGEST:
        raise ValueError(f"{len(data)} bytes, more than the {LARGEST} that may be sent")
    return data


def _pieces(value: Any) -> list[str]:
    if isinstance(value, str):
        return [quoted(value)]
    if isinstance(value, float):
        return ["NaN" if value != value else repr(value).replace("inf", "Infinity")]
    if isinstance(value, dict):
        inside = [piece for key, x in value.items() for piece in (",", quoted(key), ":", *_pieces(x))]
        return ["{", *inside[1:], "}"]
    if isinstance(value, list):
        return ["[", *[piece for x in value for piece in (",", *_pieces(x))][1:], "]"]
    return ["null" if value is None else "true" if value is True else "false" if value is False else str(value)]


def loads(data: bytes) -> Any:
    """The message; ValueError for bytes that are none, whatever is wrong with them. Called outside only."""
    import json

    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no message: {error}") from None


def send(fd: int, data: bytes) -> None:
    """A frame: four bytes of length, then the data."""
    left = memoryview(len(data).to_bytes(4, "big") + data)
    while left:
        left = left[posix.write(fd, left) :]


def receive(fd: int) -> bytes:
    """The next frame; EOFError where the other side is gone."""

    def exactly(n: int) -> bytes:
        data = b""
        while len(data) < n:
            piece = posix.read(fd, n - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    return exactly(int.from_bytes(exactly(4), "big"))
