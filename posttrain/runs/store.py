"""The database of a run: metrics, rollouts and events in SQLite, one transaction per step, readable while it is written.

Seconds are kept apart from metrics, so that the metrics of two runs can be compared bit for bit.
"""

from __future__ import annotations

import csv
import errno
import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from posttrain.core.errors import UserError, unknown
from posttrain.core.types import Group, Rollout
from posttrain.runs.checkpoint import disk_error, free_space

_SCHEMA = """
CREATE TABLE IF NOT EXISTS phases (place INTEGER PRIMARY KEY, phase TEXT UNIQUE, finished INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS roles (phase TEXT PRIMARY KEY, role TEXT, answers INTEGER);
CREATE TABLE IF NOT EXISTS metrics (phase TEXT, step INTEGER, name TEXT, value REAL, PRIMARY KEY (phase, step, name));
CREATE TABLE IF NOT EXISTS times (phase TEXT, step INTEGER, name TEXT, value REAL, PRIMARY KEY (phase, step, name));
CREATE TABLE IF NOT EXISTS rollouts (
    phase TEXT, step INTEGER, group_index INTEGER, sample_index INTEGER, prompt_id TEXT, prompt TEXT, text TEXT,
    reward REAL, failed INTEGER, rewards TEXT, tokens TEXT, logp TEXT, adv TEXT, mask TEXT, version INTEGER,
    stopped INTEGER, PRIMARY KEY (phase, step, group_index, sample_index));
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, phase TEXT, step INTEGER, kind TEXT, message TEXT);
"""
TABLES = ("metrics", "times", "rollouts", "events")
FORMATS = ("csv", "jsonl", "parquet")
_LITTLE = 1 << 20  # bytes: with less free space than this, an I/O error of SQLite means a full disk
_JSON_COLUMNS = ("rewards", "tokens", "logp", "adv", "mask")
Row = dict[str, Any]


class Store:
    """One connection to run.sqlite; `readonly` never creates or changes anything."""

    def __init__(self, path: Path, readonly: bool = False) -> None:
        self.path, self.readonly = path, readonly
        with self._errors():
            self.db = _open_readonly(path) if readonly else sqlite3.connect(path, timeout=30)
            self.db.row_factory = sqlite3.Row
            if not readonly:
                self.db.execute("PRAGMA journal_mode=WAL")
                self.db.execute("PRAGMA synchronous=NORMAL")
                self.db.executescript(_SCHEMA)

    # ---- writing

    def log(
        self, phase: str, step: int, metrics: dict[str, float], groups: list[Group], seconds: float, limit: int = -1
    ) -> None:
        """One step in one transaction; at most `limit` rollouts (-1: all), those of a group together."""
        rows = [
            _rollout_row(phase, step, g, s, r) for g, group in enumerate(groups) for s, r in enumerate(group.rollouts)
        ]
        rows = rows if limit < 0 else rows[:limit]
        steady = {k: v for k, v in metrics.items() if not _is_time(k)}
        times = {k: v for k, v in metrics.items() if _is_time(k)} | {"seconds": seconds}
        failed = sum(r.failed for g in groups for r in g.rollouts)
        skipped = metrics.get("skipped", 0.0) - self._skipped_before(phase, step)
        with self._errors(), self.db:
            self.db.execute("INSERT OR IGNORE INTO phases (phase) VALUES (?)", (phase,))
            for table, values in (("metrics", steady), ("times", times)):
                found = [(phase, step, k, float(v)) for k, v in values.items()]
                self.db.executemany(f"INSERT INTO {table} VALUES (?,?,?,?)", found)
            if rows:
                self.db.executemany(f"INSERT INTO rollouts VALUES ({','.join('?' * len(rows[0]))})", rows)
            if failed:
                self._event(phase, step, "failed reward", f"{failed} answers could not be scored and were left out")
            if skipped > 0:
                self._event(
                    phase, step, "skipped update", f"{skipped:.0f} gradients were not finite; the weights stayed"
                )

    def event(self, phase: str, step: int, kind: str, message: str) -> None:
        """Something that the user should know of: a warning, a skipped update, failed rewards."""
        with self._errors(), self.db:
            self._event(phase, step, kind, message)

    def _skipped_before(self, phase: str, step: int) -> float:
        query = "SELECT value FROM metrics WHERE phase = ? AND step < ? AND name = 'skipped' ORDER BY step DESC LIMIT 1"
        row = self.db.execute(query, (phase, step)).fetchone()
        return row[0] if row else 0.0

    def _event(self, phase: str, step: int, kind: str, message: str) -> None:
        self.db.execute(
            "INSERT INTO events (phase, step, kind, message) VALUES (?,?,?,?)", (phase, step, kind, message)
        )

    def forget(self, phase: str, step: int) -> None:
        """Delete what was written at or after a step: those steps are about to be run again."""
        with self._errors(), self.db:
            for table in TABLES:
                self.db.execute(f"DELETE FROM {table} WHERE phase = ? AND step >= ?", (phase, step))

    def begin(self, phase: str, role: str, answers: bool) -> None:
        """Record which role a phase trains, and whether that role generates answers (a reward model does not)."""
        with self._errors(), self.db:
            self.db.execute("INSERT OR REPLACE INTO roles VALUES (?, ?, ?)", (phase, role, int(answers)))

    def finish(self, phase: str) -> None:
        with self._errors(), self.db:
            self.db.execute(
                "INSERT INTO phases (phase, finished) VALUES (?, 1) ON CONFLICT (phase) DO UPDATE SET finished = 1",
                (phase,),
            )
        self.sync()

    def sync(self) -> None:
        """Flush committed rows to the disk: a checkpoint must not outlive the rows that led to it."""
        with self._errors():
            self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        self.db.close()

    # ---- reading

    def finished(self, phase: str) -> bool:
        row = self.db.execute("SELECT finished FROM phases WHERE phase = ?", (phase,)).fetchone()
        return bool(row and row[0])

    def phases(self) -> list[str]:
        """In the order they began."""
        return [row[0] for row in self.db.execute("SELECT phase FROM phases ORDER BY place")]

    def roles(self) -> dict[str, tuple[str, bool]]:
        """phase -> (role, whether it generates answers); empty for runs written before roles were recorded."""
        if not self.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'roles'").fetchone():
            return {}
        return {phase: (role, bool(answers)) for phase, role, answers in self.db.execute("SELECT * FROM roles")}

    def metrics(self, phase: str | None = None) -> list[Row]:
        """Rows of phase, step, name, value, in the order of phases, then steps, then names."""
        return self._read("metrics", "name", phase=phase)

    def series(self, name: str, phase: str | None = None) -> list[tuple[int, float]]:
        """One metric (or time) as (step, value), phase after phase."""
        table = "times" if _is_time(name) else "metrics"
        return [(r["step"], r["value"]) for r in self._read(table, "name", phase=phase, name=name)]

    def names(self) -> list[str]:
        return [row[0] for row in self.db.execute("SELECT DISTINCT name FROM metrics ORDER BY name")]

    def times(self, phase: str | None = None) -> list[Row]:
        """Rows like those of metrics: the whole step is `seconds`."""
        return self._read("times", "name", phase=phase)

    def rollouts(self, step: int | None = None, phase: str | None = None) -> list[Row]:
        """Stored rollouts; tokens, logp, adv, mask and rewards are decoded from JSON."""
        return self._read("rollouts", "group_index, sample_index", phase=phase, step=step)

    def events(self, kind: str | None = None) -> list[Row]:
        return self._read("events", "id", kind=kind)

    def _read(self, table: str, order: str, **where: Any) -> list[Row]:
        where = {k: v for k, v in where.items() if v is not None}
        condition = "".join(f" AND t.{k} = ?" for k in where)
        query = (
            f"SELECT t.* FROM {table} t LEFT JOIN phases p ON p.phase = t.phase "
            f"WHERE 1 = 1{condition} ORDER BY p.place, t.step, {order}"
        )
        with self._errors():
            return [_row(r) for r in self.db.execute(query, tuple(where.values()))]

    # ---- export

    def export(self, folder: Path, format: str = "csv") -> list[Path]:
        """One file per table, for other tools; Parquet needs the package pyarrow."""
        if format not in FORMATS:
            raise unknown("export format", format, FORMATS)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for table in TABLES:
            rows = self._read(table, "t.rowid")
            path = folder / f"{table}.{format}"
            {"csv": _write_csv, "jsonl": _write_jsonl, "parquet": _write_parquet}[format](
                path, rows, self._columns(table)
            )
            paths.append(path)
        return paths

    def _columns(self, table: str) -> list[str]:
        return [row["name"] for row in self.db.execute(f"PRAGMA table_info({table})")]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """SQLite's errors as a sentence about what to do."""
        try:
            yield
        except sqlite3.Error as error:
            raise _sentence(error, self.path) from error


def _is_time(name: str) -> bool:
    return name.rpartition("/")[2] == "seconds"


def _sentence(error: sqlite3.Error, path: Path) -> Exception:
    text = str(error)
    if "is full" in text or ("disk I/O" in text and free_space(path.parent) < _LITTLE):
        return disk_error(OSError(errno.ENOSPC, text), path.parent, 0)
    if "readonly" in text or "unable to open" in text:
        return UserError(f"cannot write {path} ({text}); make it writable or run where you may write")
    if "locked" in text:
        return UserError(f"{path} is held by another program; close it and give the same command again")
    if isinstance(error, sqlite3.DatabaseError) and ("malformed" in text or "not a database" in text):
        return UserError(f"{path} is damaged ({text}); start over with --fresh, or use another --name")
    return error


def _open_readonly(path: Path) -> sqlite3.Connection:
    if not path.exists():
        raise UserError(f"no run in {path.parent}: there is no {path.name}")
    db = sqlite3.connect(f"file:{path.resolve()}?mode=ro", uri=True, timeout=30)
    try:
        db.execute("SELECT 1 FROM phases LIMIT 1")
        return db
    except sqlite3.OperationalError:  # WAL needs a writable folder; elsewhere a finished run is opened as it is
        db.close()
        return sqlite3.connect(f"file:{path.resolve()}?immutable=1", uri=True)


def _rollout_row(phase: str, step: int, group: int, sample: int, r: Rollout) -> tuple[Any, ...]:
    return (
        phase, step, group, sample, r.prompt.id, r.info.get("asked", r.prompt.last), r.text, r.reward, int(r.failed),
        json.dumps(r.rewards), _list(r.actions), _list(r.logp_T), _list(r.stream("adv")), _list(r.mask_T.int()), r.version,
        int(not r.truncated),
    )  # fmt: skip


def _list(x: Tensor | None) -> str | None:
    return None if x is None else json.dumps(x.tolist())


def _row(r: sqlite3.Row) -> Row:
    """SQLite has no NaN: a NULL metric stands for one."""
    out = dict(r)
    if "value" in out and out["value"] is None:
        out["value"] = math.nan
    return {k: json.loads(v) if k in _JSON_COLUMNS and isinstance(v, str) else v for k, v in out.items()}


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
