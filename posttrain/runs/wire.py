"""Groups, prompts and tensors as bytes and back: what workers are sent, what they send, what the ledger keeps.

    length of the header (8 bytes)   header (JSON)   tensors, one after another   SHA-256 of all before it

Nothing is pickled: reading runs no code, and a file that was cut off or changed is known by its hash. What is one object here
(a prompt, an observation, a tensor that siblings share) is one object again after reading.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from posttrain.core.prompt import Prompt
from posttrain.core.protocols import Step
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Branch, End, Group, Origin, Rollout
from posttrain.rewards.runtime.outcome import Failure
from posttrain.rewards.runtime.scorer import RewardReport, ScoreReport

_TAG = "\0kind"  # a key that no row has
_SHARED = (Tensor, Prompt, Observation)  # written once, however often they are referred to
_ENUMS: dict[str, type[Enum]] = {"End": End, "Origin": Origin}
_PLAIN = (str, int, float, bool)
_CLASSES: dict[str, type] = {
    c.__name__: c for c in (Prompt, Observation, Turn, Rollout, Group, Branch, Failure, RewardReport, ScoreReport, Step)
}
_DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    )
}  # fmt: skip


class Unsendable(Exception):
    """An object that cannot be sent to another process, nor kept in the ledger."""


class Damaged(Exception):
    """Bytes that are not what was written."""


def pack(value: Any) -> bytes:
    """Any value of lists, dicts, numbers, texts, tensors and the types of `core.types`, as bytes."""
    writer = _Writer()
    value = writer.encode(value)
    header = json.dumps({"objects": writer.objects, "value": value}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that tensors are aligned
    body = b"".join((len(header).to_bytes(8, "little"), header, *writer.pieces))
    return body + hashlib.sha256(body).digest()


def unpack(data: bytes) -> Any:
    """The reverse; Damaged where the bytes are not all there, or not the same."""
    if len(data) < 48 or hashlib.sha256(memoryview(data)[:-32]).digest() != data[-32:]:
        raise Damaged(f"{len(data)} bytes that do not have the hash they were written with")
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    reader = _Reader(bytearray(memoryview(data)[8 + size : -32]))
    for entry in header["objects"]:
        reader.objects.append(reader.one(entry))
    return reader.decode(header["value"])


class _Writer:
    def __init__(self) -> None:
        self.objects: list[Any] = []  # of `_SHARED`, in the order in which they were first met
        self.pieces: list[bytes] = []
        self.at = 0
        self.known: dict[int, int] = {}  # id of an object -> its place
        self.held: list[Any] = []  # so that no id is used again

    def encode(self, x: Any) -> Any:
        kind = type(x)
        if x is None or kind in _PLAIN:
            return x
        if isinstance(x, _SHARED):
            return {_TAG: "@", "of": self._shared(x)}
        if kind is list:
            return [self.encode(v) for v in x]
        if kind is dict:
            if all(type(k) is str and k != _TAG for k in x):
                return {k: self.encode(v) for k, v in x.items()}
            return {_TAG: "dict", "of": [[self.encode(k), self.encode(v)] for k, v in x.items()]}
        if kind in (tuple, set, frozenset):
            return {_TAG: kind.__name__, "of": [self.encode(v) for v in x]}
        if kind is bytes:
            return {_TAG: "bytes", "of": base64.b64encode(x).decode()}
        if _ENUMS.get(kind.__name__) is kind:
            return {_TAG: kind.__name__, "of": x.value}
        if _CLASSES.get(kind.__name__) is kind:
            return {_TAG: kind.__name__, "of": self._fields(x)}
        raise Unsendable(f"a {kind.__module__}.{kind.__qualname__}")

    def _fields(self, x: Any) -> dict[str, Any]:
        return {f.name: self.encode(getattr(x, f.name)) for f in dataclasses.fields(x)}

    def _shared(self, x: Any) -> int:
        if id(x) not in self.known:
            body = self._tensor(x) if isinstance(x, Tensor) else {_TAG: type(x).__name__, "of": self._fields(x)}
            self.objects.append(body)
            self.held.append(x)
            self.known[id(x)] = len(self.objects) - 1
        return self.known[id(x)]

    def _tensor(self, x: Tensor) -> list[Any]:
        """[dtype, shape, place, repeats]; one number that was expanded over time (the version of a turn) is written once."""
        name = str(x.dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise Unsendable(f"a tensor of {x.dtype}")
        repeats = len(x) if x.dim() == 1 and len(x) and x.stride(0) == 0 else 0
        flat = (x[0].clone() if repeats else x).detach().cpu().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        place, self.at = self.at, self.at + len(raw) + (-len(raw) % 8)
        self.pieces += [raw, b"\0" * (-len(raw) % 8)]
        return [name, [1] if repeats else list(x.shape), place, repeats]


class _Reader:
    def __init__(self, raw: bytearray) -> None:
        self.raw = raw
        self.objects: list[Any] = []

    def one(self, entry: Any) -> Any:
        return self._tensor(*entry) if isinstance(entry, list) else self.decode(entry)

    def decode(self, x: Any) -> Any:
        if isinstance(x, list):
            return [self.decode(v) for v in x]
        if not isinstance(x, dict):
            return x
        kind = x.get(_TAG)
        if kind is None:
            return {k: self.decode(v) for k, v in x.items()}
        if kind == "@":
            return self.objects[x["of"]]
        if kind == "dict":
            return {self.decode(k): self.decode(v) for k, v in x["of"]}
        if kind == "bytes":
            return base64.b64decode(x["of"])
        if kind in _ENUMS:
            return _ENUMS[kind](x["of"])
        if kind in _CLASSES:
            return _CLASSES[kind](**{k: self.decode(v) for k, v in x["of"].items()})
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(self.decode, x["of"]))

    def _tensor(self, name: str, shape: list[int], place: int, repeats: int) -> Tensor:
        dtype, count = _DTYPES[name], 1
        for n in shape:
            count *= n
        if not count:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self.raw, dtype=dtype, count=count, offset=place)
        return flat[0].expand(repeats) if repeats else flat.reshape(shape)
