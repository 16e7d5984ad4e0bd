"""What a fixed reference says of data that is written before the run: computed once, kept on the disk, read from then on.

A number's last bits depend on which rows are in one forward pass. So what is kept is a pass: its rows in their order, and what a reference of
these weights says of them on this machine. A run that asks for the same pass gets the bits that it would have computed. A row that
comes back in a later epoch keeps what it had in its first pass, which is known from the order of the data alone, so a
run that is resumed, longer, or finds nothing on the disk has the same numbers.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.core.batch import Batch, pad
from posttrain.core.turn import Turn
from posttrain.weights.batches import micro_batches

_LAYOUT = 1  # raise where the same rows and weights would give other bits
_KEPT = 16  # files, one for each reference; the one that was used longest ago goes first


class Known:
    """Log-probabilities of rows by what is in them. batches: the steps' rows, in their order; made when first asked."""

    def __init__(self, batches: Callable[[], Iterable[tuple[list[Turn], Batch]]], micro_tokens: int) -> None:
        self.batches, self.micro_tokens = batches, micro_tokens
        self.rows: dict[bytes, Tensor] | None = None
        self.computed = 0  # passes that were not on the disk

    def of(self, policy: Any, compute: Callable[[Sequence[Turn]], Tensor], rows: Sequence[Turn]) -> Tensor | None:
        """logp_BT of rows, where all are known; compute: what the reference says of them."""
        if self.rows is None:
            self.rows = dict(self._all(policy, compute))
        found = [self.rows.get(row_key(row)) for row in rows]
        some = [x for x in found if x is not None]
        return pad(some, max(map(len, some))) if len(some) == len(found) > 0 else None

    def _all(self, policy: Any, compute: Callable[[Sequence[Turn]], Tensor]) -> Iterator[tuple[bytes, Tensor]]:
        """Every row with what its first pass says of it."""
        seen: set[bytes] = set()
        with closing(Passes(identity(policy))) as kept:
            for rows, batch in self.batches():
                for cell in micro_batches(batch, torch.arange(len(rows)), self.micro_tokens):
                    some = [rows[i] for i in cell.tolist()]
                    keys = [row_key(row) for row in some]
                    if seen.issuperset(keys):
                        continue
                    whole = hashlib.blake2b(b"".join(keys), digest_size=20).digest()
                    lengths = [len(row) for row in some]
                    told_BT = kept.get(whole, lengths)
                    if told_BT is None:
                        told_BT = compute(some).float().cpu()
                        kept.put(whole, told_BT, lengths)
                        self.computed += 1
                    for key, x_T, n in zip(keys, told_BT, lengths, strict=True):
                        if key not in seen:
                            seen.add(key)
                            yield key, x_T[:n].clone()


class Passes:
    """The file of one reference: numbers by pass. A disk that cannot be written to costs time, nothing else."""

    def __init__(self, name: str) -> None:
        self.db: sqlite3.Connection | None = None
        with suppress(OSError, sqlite3.Error):
            folder = place()
            folder.mkdir(parents=True, exist_ok=True)
            files = sorted(folder.glob("*.sqlite"), key=lambda file: file.stat().st_mtime)
            for old in [file for file in files if file.stem != name][: -_KEPT + 1]:
                old.unlink(missing_ok=True)
            self.db = sqlite3.connect(folder / f"{name}.sqlite", timeout=10)
            self.db.execute("CREATE TABLE IF NOT EXISTS passes (key BLOB PRIMARY KEY, logp BLOB)")
            os.utime(folder / f"{name}.sqlite")

    def get(self, key: bytes, lengths: Sequence[int]) -> Tensor | None:
        found = None
        with suppress(sqlite3.Error):
            found = self.db and self.db.execute("SELECT logp FROM passes WHERE key = ?", (key,)).fetchone()
        if not found or len(found[0]) != 4 * sum(lengths):
            return None
        flat = torch.from_numpy(np.frombuffer(found[0], dtype=np.float32).copy())
        return pad(flat.split(list(lengths)), max(lengths))

    def put(self, key: bytes, told_BT: Tensor, lengths: Sequence[int]) -> None:
        flat = torch.cat([x_T[:n] for x_T, n in zip(told_BT, lengths, strict=True)])
        with suppress(sqlite3.Error):
            if self.db:
                self.db.execute("INSERT OR REPLACE INTO passes VALUES (?, ?)", (key, flat.numpy().tobytes()))

    def close(self) -> None:
        with suppress(sqlite3.Error):
            if self.db:
                self.db.commit()
                self.db.close()


def place() -> Path:
    root = os.environ.get("POSTTRAIN_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "posttrain") / "reference"


def row_key(row: Turn) -> bytes:
    """What a row is: all that is observed, and the actions."""
    digest = hashlib.blake2b(row.observation.key, digest_size=16)
    digest.update(b"|" + row.actions.cpu().numpy().tobytes())
    return digest.digest()


def identity(policy: Any) -> str:
    """Of a reference: its weights, and on what and how it computes."""
    digest = hashlib.blake2b(digest_size=16)
    device = next(policy.parameters()).device
    machine = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.processor()} {torch.get_num_threads()}"
    )
    how = [_LAYOUT, torch.__version__, machine, torch.get_float32_matmul_precision(), type(policy).__qualname__]
    how += [getattr(policy, name, None) for name in ("temperature", "layout")] + [
        getattr(getattr(policy, "model", None), "config", None)
    ]
    digest.update(repr(how).encode())
    for name, x in sorted(policy.state_dict().items()):
        digest.update(f"|{name}{tuple(x.shape)}{x.dtype}".encode())
        digest.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
