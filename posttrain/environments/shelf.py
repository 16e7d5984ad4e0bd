"""Rows of files that stay on the disk: any row by its number, and an order of all of them that needs no memory.

JSON lines are read by their place in the file; Parquet files row group by row group.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from posttrain.core import rng as draws
from posttrain.core.errors import UserError
from posttrain.environments.rows import Bad, Row, as_object, native, open_parquet, why

_EVERY = 32  # lines between two places that are remembered: 8 bytes for so many rows


class LineFile:
    """A file of JSON lines; one pass over it counts the rows and remembers where every 32nd begins."""

    def __init__(self, path: Path) -> None:
        self.path, self.count, self.marks, digest = path, 0, array("Q"), hashlib.sha256()
        at = 0
        with path.open("rb") as file:
            for line in file:
                digest.update(line)
                if line.strip():
                    if self.count % _EVERY == 0:
                        self.marks.append(at)
                    self.count += 1
                at += len(line)
        self.blocks, self.digest = [self.count], digest.hexdigest()[:10]

    def row(self, i: int) -> Row:
        with self.path.open("rb") as file:
            file.seek(self.marks[i // _EVERY])
            lines = (line for line in file if line.strip())
            line = next(line for k, line in enumerate(lines) if k == i % _EVERY)
        where = f"row {i + 1}"
        try:
            return where, as_object(json.loads(line.decode("utf-8-sig")))
        except UnicodeDecodeError as error:
            return where, Bad(f"not UTF-8 text: {error.reason}")
        except (ValueError, RecursionError) as error:
            return where, Bad(f"not JSON{why(error)}")


class GroupFile:
    """A Parquet file; one of its row groups is in memory at a time."""

    def __init__(self, path: Path) -> None:
        self.file = open_parquet(path)
        about = self.file.metadata
        self.blocks = [n for g in range(about.num_row_groups) if (n := about.row_group(g).num_rows)]
        self.groups = [g for g in range(about.num_row_groups) if about.row_group(g).num_rows]
        self.ends, self.count = list(accumulate(self.blocks)), about.num_rows
        self._group: tuple[int, Any] = (-1, None)
        with path.open(
            "rb"
        ) as file:  # the footer says where every column of every group is, with its least and greatest
            file.seek(-min(1 << 16, path.stat().st_size), 2)
            told = f"{path.stat().st_size} {about.serialized_size} {about.num_rows}".encode()
            self.digest = hashlib.sha256(told + file.read()).hexdigest()[:10]

    def row(self, i: int) -> Row:
        k = bisect_right(self.ends, i)
        if self._group[0] != k:
            self._group = (k, self.file.read_row_group(self.groups[k]))
        inside = i - (self.ends[k] - self.blocks[k])
        return f"row {i + 1}", native(self._group[1].slice(inside, 1).to_pylist()[0])


class Shelf:
    """The rows of several files in one numbering."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.files = [_opened(Path(p)) for p in paths]
        self.ends = list(accumulate(f.count for f in self.files))
        self.count = self.ends[-1]
        lines = all(isinstance(f, LineFile) for f in self.files)
        # what is shuffled: blocks, and the rows in each; lines can be read in any order, so they are one block
        self.blocks = [self.count] if lines else [n for f in self.files for n in f.blocks]
        self.starts = [end - n for end, n in zip(accumulate(self.blocks), self.blocks, strict=True)]
        self.digest = hashlib.sha256(" ".join(f.digest for f in self.files).encode()).hexdigest()[:10]

    def row(self, i: int) -> Row:
        """Row number i, and where it is."""
        k = bisect_right(self.ends, i)
        return self.files[k].row(i - (self.ends[k] - self.files[k].count))

    def place(self, index: int, *identity: object) -> int:
        """The row that comes at `index`: every pass over all rows is in another order, a function of identity and pass."""
        turn, r = divmod(index, self.count)
        order, ends = _pass(tuple(self.blocks), (*identity, turn))
        k = bisect_right(ends, r)
        block = order[k]
        inside = permuted(r - (ends[k] - self.blocks[block]), self.blocks[block], (*identity, turn, block))
        return self.starts[block] + inside

    def spread(self, count: int, blocks: int = 8) -> list[int]:
        """So many rows from all over the shelf, but from a few blocks only: what is held out where no split is given."""
        some = [len(self.blocks) * b // min(blocks, len(self.blocks)) for b in range(min(blocks, len(self.blocks)))]
        each = max(1, count // len(some))
        return sorted(
            {
                self.starts[b] + self.blocks[b] * i // min(each, self.blocks[b])
                for b in some
                for i in range(min(each, self.blocks[b]))
            }
        )


def _opened(path: Path) -> LineFile | GroupFile:
    if not path.is_file():
        raise UserError(f"no data file at {path}")
    if path.suffix in (".jsonl", ".ndjson"):
        return LineFile(path)
    if path.suffix == ".parquet":
        return GroupFile(path)
    hint = "unpack it first: gunzip -k" if path.suffix == ".gz" else "write it as .jsonl or .parquet first"
    raise UserError(f"{path.name} cannot be read row by row from the disk; {hint}, or leave --stream away")


@lru_cache(maxsize=4)
def _pass(blocks: tuple[int, ...], identity: tuple[object, ...]) -> tuple[list[int], list[int]]:
    """The order of the blocks in one pass, and where each ends in it."""
    order = draws.python(*identity, "blocks").sample(range(len(blocks)), len(blocks))
    return order, list(accumulate(blocks[b] for b in order))


def permuted(i: int, n: int, identity: tuple[object, ...]) -> int:
    """Where i goes in a permutation of n that is never written down: four rounds of a Feistel network, repeated until the result is
    below n."""
    bits = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = (1 << bits) - 1
    while True:
        left, right = i >> bits, i & mask
        for k in range(4):
            left, right = right, left ^ (draws.key(*identity, k, right) & mask)
        i = left << bits | right
        if i < n:
            return i
