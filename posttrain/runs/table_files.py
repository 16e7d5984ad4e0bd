"""Tables as files for other tools: CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError

Row = dict[str, Any]


def write_rows(path: Path, rows: list[Row], columns: list[str]) -> None:
    """The rows, in the format that the name's ending says."""
    WRITERS[path.suffix.removeprefix(".")](path, rows, columns)


def _flat(row: Row) -> Row:
    return {k: json.dumps(v) if isinstance(v, (list, dict)) else v for k, v in row.items()}


def _write_csv(path: Path, rows: list[Row], columns: list[str]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, columns)
        out.writeheader()
        out.writerows(_flat(r) for r in rows)


def _write_jsonl(path: Path, rows: list[Row], columns: list[str]) -> None:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")


def _write_parquet(path: Path, rows: list[Row], columns: list[str]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError("Parquet needs the package pyarrow: pip install pyarrow, or export as csv or jsonl") from None
    flat = [_flat(r) for r in rows]
    pq.write_table(pa.table({c: [r[c] for r in flat] for c in columns}), path)


WRITERS = {"csv": _write_csv, "jsonl": _write_jsonl, "parquet": _write_parquet}
