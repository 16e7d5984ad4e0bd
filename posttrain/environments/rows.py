"""Rows of a data file: JSON lines, JSON, CSV, TSV or Parquet, plain or gzipped, or any iterable of dicts.

A row that cannot be read is kept as a `Bad` with the reason, so that whoever loads the file can count them and tell.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError

FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Bad:
    """Why a row cannot be used."""

    reason: str


class Files(tuple[Path, ...]):
    """Several files that are one data set, in this order."""


Row = tuple[str, "dict[str, Any] | Bad"]  # where it is ("line 12", "row 3"), and what is there


def read_rows(source: str | Path | Iterable[Any]) -> Iterator[Row]:
    """The rows of a file, of several, or of an iterable of dicts such as a `datasets` data set."""
    if isinstance(source, Files):
        return ((f"{file.name}, {where}", row) for file in source for where, row in read_rows(file))
    if not isinstance(source, (str, Path)):
        return _from_python(source)
    path = Path(source)
    if not path.is_file():
        raise UserError(f"no data file at {path}" + ("; it is a folder, name a file in it" if path.is_dir() else ""))
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind not in FORMATS or (kind == ".parquet" and path.suffix == ".gz"):
        raise UserError(f"cannot read {path.name}; a data file ends in {', '.join(FORMATS)} (or .jsonl.gz, .csv.gz)")
    return _parquet(path) if kind == ".parquet" else _text(path, kind)


def check_room(source: object) -> None:
    """Refuse to load a file that could not fit: rows in memory take several times the space they have on the disk (12 times for a line of 100 bytes)."""
    files = source if isinstance(source, Files) else [Path(source)] if isinstance(source, (str, Path)) else []
    size = sum(file.stat().st_size for file in files if file.is_file())
    if size > 1 << 30:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if 4 * size > memory:
            raise UserError(
                f"{name_of(source)} has {size / 2**30:.1f} GB and this machine {memory / 2**30:.1f} GB of memory; add --stream to "
                "read rows from the disk as they are needed"
            )


def name_of(source: object) -> str:
    """What to call a source in an error and in prompt ids."""
    if isinstance(source, Files):
        source = source[0]
    if not isinstance(source, (str, Path)):
        return "rows"
    path = Path(source)
    stem = path.name.split(".")[0]
    return path.absolute().parent.name if stem in ("train", "test") else stem


def _text(path: Path, kind: str) -> Iterator[Row]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="" if kind in (".csv", ".tsv") else None) as file:
            if kind == ".json":
                yield from _json(path, file.read())
            elif kind in (".csv", ".tsv"):
                yield from _csv(path, file, "\t" if kind == ".tsv" else ",")
            else:
                yield from _jsonl(file)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a whole gzip file: {error}") from None


def why(error: Exception) -> str:
    """What is wrong with a JSON text, after the words `not JSON`."""
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        return f": {error.msg} at {line}column {error.colno}"
    if isinstance(error, RecursionError):
        return " that can be read: nested too deeply"
    return " that can be read: a number of too many digits" if "digits" in str(error) else f": {error}"


def _jsonl(lines: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", as_object(json.loads(line))
        except (ValueError, RecursionError) as error:
            yield f"line {number}", Bad(f"not JSON{why(error)}")


def _json(path: Path, text: str) -> Iterator[Row]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON{why(error)}") from None
    if isinstance(data, dict):
        lists = [v for v in data.values() if isinstance(v, list)]
        data = lists[0] if len(lists) == 1 else data
    if not isinstance(data, list):
        raise UserError(f"{path} holds {_kind(data)}, expected a list of objects (or an object with one list in it)")
    for number, row in enumerate(data, 1):
        yield f"row {number}", as_object(row)


def _csv(path: Path, file: Iterable[str], delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(1 << 30)
    reader: csv.DictReader[Any] = csv.DictReader(file, delimiter=delimiter, strict=True)
    columns = reader.fieldnames or []
    if len(set(columns)) < len(columns):
        raise UserError(f"{path} names a column twice: {', '.join(columns)}")
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield f"line {reader.line_num}", Bad(f"not CSV: {error}")
            continue
        wrong = None in row or None in row.values()  # too many values, or too few
        got = len([v for k, v in row.items() if k is not None and v is not None]) + len(row.get(None, ()))
        yield f"line {reader.line_num}", Bad(f"{got} values for {len(columns)} columns") if wrong else dict(row)


def open_parquet(path: Path) -> Any:
    """A Parquet file, opened."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"reading {path.name} needs pyarrow; type: pip install 'posttrain[parquet]'") from None
    try:
        return parquet.ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a Parquet file: {error}") from None


def _parquet(path: Path) -> Iterator[Row]:
    number = 0
    for batch in open_parquet(path).iter_batches():
        for row in batch.to_pylist():
            number += 1
            yield f"row {number}", native(row)


def _from_python(source: Any) -> Iterator[Row]:
    if hasattr(source, "to_pylist"):  # a pyarrow table
        source = source.to_pylist()
    elif hasattr(source, "to_dict") and hasattr(source, "iterrows"):  # a pandas data frame
        source = source.to_dict("records")
    if not isinstance(source, Iterable):
        raise UserError(f"data is a file name or an iterable of dicts, got {_kind(source)}")
    for number, row in enumerate(source, 1):
        yield f"row {number}", native(as_object(row))


def native(value: Any) -> Any:
    """Values of numpy, torch and Arrow as Python's own: arrays as lists, decimals and dates as texts."""
    if value is None or type(value) in (str, int, float, bool, Bad):
        return value
    if isinstance(value, dict):
        return {k: native(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [native(v) for v in value]
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, date):
        return value.isoformat()
    return native(value.tolist()) if hasattr(value, "tolist") else value


def as_object(row: Any) -> dict[str, Any] | Bad:
    """The row, if it is an object."""
    return dict(row) if isinstance(row, Mapping) else Bad(f"{_kind(row)}, expected an object")


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "an object", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
