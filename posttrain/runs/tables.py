"""Tables of tensors as safetensors files: written and hashed in one pass that leaves the interpreter free for other threads.

The library's own writer copies every tensor into bytes and holds the interpreter while it writes; the format is a header of JSON
and the tensors one after another. The library's reader reads what is written here.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

Table = dict[str, Tensor]
Tables = dict[str, Table]
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_CHUNK = 1 << 24  # bytes written and hashed at a time
_HASHERS = max(1, min(4, (os.cpu_count() or 1) // 2))  # threads that hash a file's pieces
WRITERS = max(1, min(4, (os.cpu_count() or 1) // 4))  # files written at a time


def size_of(tables: Tables) -> int:
    """Bytes of all tensors."""
    return sum(x.numel() * x.element_size() for table in tables.values() for x in table.values())


def write_table(path: Path, table: Table) -> dict[str, Any]:
    """Write the file and flush it to the disk; its size and hash, of what was meant to be written.

    Pieces are hashed by other threads while the file is written: `pieces` is the SHA-256 of their SHA-256s, in order.
    """
    size, found = 0, []
    order = sorted(table, key=lambda name: (-table[name].element_size(), name))  # so that every tensor is aligned
    with open(path, "wb", buffering=0) as file, ThreadPoolExecutor(_HASHERS, "hash") as pool:
        for piece in (memoryview(_header(table, order)), *(_bytes(table[name]) for name in order)):
            for start in range(0, len(piece), _CHUNK):
                chunk = piece[start : start + _CHUNK]
                found.append((len(chunk), pool.submit(_hashed, chunk)))
                size += len(chunk)
                while len(chunk):  # one call may write less than it was given
                    chunk = chunk[file.write(chunk) :]
        os.fsync(file.fileno())
        digests = [(length, job.result()) for length, job in found]
    return {"bytes": size, "lengths": [n for n, _ in digests], "pieces": _joined([d for _, d in digests])}


def intact(path: Path, want: dict[str, Any]) -> bool:
    """Whether a file holds what was written; files of the first format have one hash over all."""
    if "sha256" in want:
        return bool(file_digest(path) == want["sha256"])
    lengths: list[int] = want["lengths"]
    if sum(lengths) != path.stat().st_size:
        return False
    starts = [0, *accumulate(lengths)]

    def one(i: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            file.seek(starts[i])
            return _hashed(file.read(lengths[i]))

    with ThreadPoolExecutor(_HASHERS, "hash") as pool:
        return bool(_joined(list(pool.map(one, range(len(lengths))))) == want["pieces"])


def _hashed(chunk: memoryview | bytes) -> bytes:
    return hashlib.sha256(chunk).digest()


def _joined(digests: list[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


def read_table(path: Path) -> Table:
    return load_file(path)


def whole_tables(files: Tables) -> Tables:
    """file name -> its tensors, as tables of whole tensors: `<table>.rows-<r>-of-<n>.safetensors` hold rows of the same tensors, in order."""
    out: Tables = {}
    rows: dict[str, dict[int, Table]] = {}
    for file, table in files.items():
        name, _, part = file.removesuffix(".safetensors").partition(".rows-")
        if part:
            rows.setdefault(name, {})[int(part.split("-of-")[0])] = table
            out.setdefault(name, {})
        else:
            out[name] = table
    for name, parts in rows.items():
        for key in parts[0]:
            out[name][key] = torch.cat([parts[r][key] for r in sorted(parts)])
    return out


def own_tables(files: dict[str, Path], rank: int, world: int) -> Tables:
    """The same for one of several processes: of tensors in rows only those that are its own, so that no process needs memory for all of them.
    Any number of processes may have written them."""
    out: Tables = {}
    rows: dict[str, dict[int, Path]] = {}
    for file, path in files.items():
        name, _, part = file.removesuffix(".safetensors").partition(".rows-")
        if part:
            rows.setdefault(name, {})[int(part.split("-of-")[0])] = path
        else:
            out[name] = read_table(path)
    for name, parts in rows.items():
        with ExitStack() as stack:
            opened = [stack.enter_context(safe_open(parts[r], "pt")) for r in sorted(parts)]
            names = list(opened[0].keys())
            out.setdefault(name, {}).update(
                {key: _own([one.get_slice(key) for one in opened], rank, world) for key in names}
            )
    return out


def _own(parts: list[Any], rank: int, world: int) -> Tensor:
    """Of a tensor that lies in parts the rows that FSDP gives to a process (models/rows.py: own_rows)."""
    lengths = [part.get_shape()[0] for part in parts]
    share = -(-sum(lengths) // world)
    first, last = (min(sum(lengths), r * share) for r in (rank, rank + 1))
    found, at = [], 0
    for part, length in zip(parts, lengths, strict=True):
        found.append(part[max(0, min(length, first - at)) : max(0, min(length, last - at))])
        at += length
    return torch.cat(found)


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _header(table: Table, order: list[str]) -> bytes:
    at, entries = 0, {}
    for name in order:
        x = table[name]
        if x.dtype not in _NAMES:
            raise TypeError(f"{name} is a tensor of {x.dtype}; a checkpoint holds {', '.join(_NAMES.values())}")
        end = at + x.numel() * x.element_size()
        entries[name] = {"dtype": _NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes(x: Tensor) -> memoryview:
    flat = x.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


class HostCopy:
    """Copies of tables in host memory that later updates do not touch; the buffers are kept and used again."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, str], Tensor] = {}
        self._making: threading.Thread | None = None

    def prepare(self, tables: Tables) -> None:
        """Make the buffers for tables of a GPU in a thread: memory that it can write to directly takes a second for a gigabyte or two."""
        found = {(t, name): x for t, table in tables.items() for name, x in table.items() if x.is_cuda}
        if found:
            self._making = threading.Thread(target=lambda: [self._buffer(k, x) for k, x in found.items()], daemon=True)
            self._making.start()

    @torch.no_grad()
    def __call__(self, tables: Tables) -> Tables:
        """The tables as they are now. The copy before is overwritten: its writer must be done."""
        if self._making is not None:
            self._making.join()
            self._making = None
        out: Tables = {}
        used: set[torch.device] = set()  # GPUs whose copies are on their way
        for t, table in tables.items():
            out[t] = {}
            for name, x in table.items():
                used |= {x.device} if x.is_cuda else set()
                out[t][name] = self._buffer((t, name), x).copy_(x, non_blocking=x.is_cuda)
        for device in used:  # not only the current one: --device cuda:1
            torch.cuda.synchronize(device)
        self.buffers = {key: b for key, b in self.buffers.items() if key[1] in out.get(key[0], {})}
        return out

    def _buffer(self, key: tuple[str, str], x: Tensor) -> Tensor:
        """Pinned for a GPU, from which it is then filled at the speed of the bus."""
        had = self.buffers.get(key)
        if had is None or had.shape != x.shape or had.dtype != x.dtype:
            self.buffers[key] = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.is_cuda)
        return self.buffers[key]
