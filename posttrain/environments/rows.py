"""Rows of a data file: JSON lines, JSON, CSV, TSV or Parquet, plain or gzipped, or any iterable of dicts.

A row that cannot be read is kept as a `Bad` with the reason, so that whoever loads the file can count them and tell.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError

FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Bad:
    """Why a row cannot be used."""

    reason: str


Row = tuple[str, "dict[str, Any] | Bad"]  # where it is ("line 12", "row 3"), and what is there


def read_rows(source: str | Path | Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """The rows of a file, or of an iterable of dicts such as a `datasets` data set."""
    if not isinstance(source, (str, Path)):
        return _from_python(source)
    path = Path(source)
    if not path.is_file():
        raise UserError(f"no data file at {path}" + ("; it is a folder, name a file in it" if path.is_dir() else ""))
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind not in FORMATS or (kind == ".parquet" and path.suffix == ".gz"):
        raise UserError(f"cannot read {path.name}; a data file ends in {', '.join(FORMATS)} (or .jsonl.gz, .csv.gz)")
    return _parquet(path) if kind == ".parquet" else _text(path, kind)


def name_of(source: object) -> str:
    """What to call a source in an error and in prompt ids."""
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


def _jsonl(lines: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", _object(json.loads(line))
        except json.JSONDecodeError as error:
            yield f"line {number}", Bad(f"not JSON: {error.msg} at column {error.colno}")
        except RecursionError:
            yield f"line {number}", Bad("not JSON that can be read: nested too deeply")


def _json(path: Path, text: str) -> Iterator[Row]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    if isinstance(data, dict):
        lists = [v for v in data.values() if isinstance(v, list)]
        data = lists[0] if len(lists) == 1 else data
    if not isinstance(data, list):
        raise UserError(f"{path} holds {_kind(data)}, expected a list of objects (or an object with one list in it)")
    for number, row in enumerate(data, 1):
        yield f"row {number}", _object(row)


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


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"reading {path.name} needs pyarrow; type: pip install 'posttrain[parquet]'") from None
    try:
        file = parquet.ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a Parquet file: {error}") from None
    number = 0
    for batch in file.iter_batches():
        for row in batch.to_pylist():
            number += 1
            yield f"row {number}", row


def _from_python(source: Iterable[Any]) -> Iterator[Row]:
    if not isinstance(source, Iterable):
        raise UserError(f"data is a file name or an iterable of dicts, got {_kind(source)}")
    for number, row in enumerate(source, 1):
        yield f"row {number}", _object(row)


def _object(row: Any) -> dict[str, Any] | Bad:
    return dict(row) if isinstance(row, Mapping) else Bad(f"{_kind(row)}, expected an object")


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "an object", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
