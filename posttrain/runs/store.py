"""The database of a run: metrics, rollouts and events in SQLite, one transaction per step, readable while it is written.

Seconds are kept apart from metrics, so that the metrics of two runs can be compared bit for bit. In a run a thread does the
writing: a step only copies what could change (`rows.frozen`), and `sync` waits until all of it is on the disk.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from posttrain.core.errors import unknown
from posttrain.core.types import Group
from posttrain.policies.pieces import token_bytes
from posttrain.runs.cap import Cap, Size
from posttrain.runs.pictures import Shapes
from posttrain.runs.reader import Reader, Row, is_time
from posttrain.runs.rows import Pieces, Record, frozen, insert, new_ids
from posttrain.runs.schema import BUCKET, BY_STEP, BY_TEXT, as_json, open_readonly, prepare, roll_up, version_of
from posttrain.runs.table_files import WRITERS, write_rows
from posttrain.runs.writer import Writer

EXPORTED = ("metrics", "times", "rollouts", "events")
Job = Callable[[sqlite3.Connection], None]


class Store(Reader):
    """One connection to run.sqlite; `readonly` never creates or changes anything, `background` writes in a thread of its own."""

    def __init__(self, path: Path, readonly: bool = False, background: bool = False) -> None:
        self.path, self.readonly = path, readonly
        self.cap: float | None = None  # bytes of texts and token streams; None: no limit
        self.token_bytes: Pieces | None = None  # where the bytes of token ids come from
        self.shapes: Shapes = {}  # of pictures that are flat vectors, by role
        self._writer: Writer | None = None
        self._known: set[int] | None = None
        self._kept: Cap | None = None
        with self._errors():
            self.db = open_readonly(path) if readonly else _connect(path)
            self.db.row_factory = sqlite3.Row
            if not readonly:
                prepare(self.db, path)
            self.version = version_of(self.db, path)
            if background and not readonly:
                self._write_db, self._writer = _connect(path), Writer()

    # ---- writing

    def log(
        self, phase: str, step: int, metrics: dict[str, float], groups: list[Group], seconds: float, limit: int = -1
    ) -> None:
        """One step in one transaction; text and tokens of at most `limit` rollouts (-1: all), those of a group together."""
        kept = frozen(groups, self.shapes) if self._writer else groups
        record = Record(phase, step, dict(metrics), seconds, kept, limit, self.shapes)
        self._do(partial(self._log, record=record), wait=False)

    def event(self, phase: str, step: int, kind: str, message: str) -> None:
        """Something that the user should know of: a warning, a skipped update, failed rewards."""
        self._do(lambda db: _event(db, phase, step, kind, message), wait=False)

    def forget(self, phase: str, step: int) -> None:
        """Delete what was written at or after a step: those steps are about to be run again."""
        self._do(partial(_forget, phase=phase, step=step))
        self._kept = None

    def begin(self, phase: str, role: str, answers: bool, weights: dict[str, float] | None = None) -> None:
        """Record which role a phase trains, whether it generates answers (a reward model does not), and the rewards' weights."""

        def job(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR REPLACE INTO roles VALUES (?, ?, ?)", (phase, role, int(answers)))
            rows = [(phase, name, float(w)) for name, w in (weights or {}).items()]
            db.executemany("INSERT OR REPLACE INTO components VALUES (?, ?, ?)", rows)
            drawn = [(phase, of, as_json(list(shape))) for of, shape in self.shapes.items()]
            db.executemany("INSERT OR REPLACE INTO shapes VALUES (?, ?, ?)", drawn)

        self._do(job)

    def finish(self, phase: str) -> None:
        done = "INSERT INTO phases (phase, finished) VALUES (?, 1) ON CONFLICT (phase) DO UPDATE SET finished = 1"
        self._do(lambda db: void(db.execute(done, (phase,))))
        self.sync()

    def sync(self) -> None:
        """All rows so far are on the disk: a checkpoint must not outlive the rows that led to it. Any thread may call it."""
        self._do(partial(_flush, path=self.path), transaction=False)

    def close(self) -> None:
        """Write what is on its way, then close."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        finally:
            if writer is not None:
                self._write_db.close()
            self.db.close()

    def _do(self, job: Job, wait: bool = True, transaction: bool = True) -> None:
        if self._writer is None:
            self._run(self.db, job, transaction)
        elif wait:
            self._writer.wait(partial(self._run, self._write_db, job, transaction))
        else:
            self._writer.put(partial(self._run, self._write_db, job, transaction))

    def _run(self, db: sqlite3.Connection, job: Job, transaction: bool) -> None:
        try:
            with self._errors():
                if not transaction:
                    return job(db)
                with db:
                    return job(db)
        except BaseException:
            self._known = self._kept = None  # they may know rows that were taken back
            raise

    def _current(self) -> None:
        if self._writer is not None:
            self._writer.drain()

    # ---- inside the transaction of a step

    def _log(self, db: sqlite3.Connection, record: Record) -> None:
        phase, step, metrics = record.phase, record.step, record.metrics
        db.execute("INSERT OR IGNORE INTO phases (phase) VALUES (?)", (phase,))
        times = {k: v for k, v in metrics.items() if is_time(k)} | {"seconds": record.seconds}
        for table, values in (("metrics", {k: v for k, v in metrics.items() if not is_time(k)}), ("times", times)):
            found = [(phase, step, k, float(v)) for k, v in values.items()]
            db.executemany(f"INSERT INTO {table} VALUES (?,?,?,?)", found)
        rollouts = [r for g in record.groups for r in g.rollouts]
        failed = sum(r.failed for r in rollouts)
        if failed:
            _event(db, phase, step, "failed reward", f"{failed} answers could not be scored and were left out")
        skipped = metrics.get("skipped", 0.0) - _skipped_before(db, phase, step)
        if skipped > 0:
            _event(db, phase, step, "skipped update", f"{skipped:.0f} gradients were not finite; the weights stayed")
        sizes = insert(db, record)
        if rollouts:  # what was made, stored or not
            db.execute("INSERT INTO steps VALUES (?,?,?,?,?)", (phase, step, len(rollouts), *sizes))
        if (step + 1) % BUCKET == 0:
            roll_up(db, phase, step // BUCKET)
        self._keep_pieces(db, record)
        self._trim(db, (phase, step, *sizes))

    def _keep_pieces(self, db: sqlite3.Connection, record: Record) -> None:
        if self.token_bytes is None or record.limit == 0:
            return
        if self._known is None:
            self._known = {row[0] for row in db.execute("SELECT id FROM pieces")}
        if ids := new_ids(record.groups, self._known):
            db.executemany("INSERT OR IGNORE INTO pieces VALUES (?, ?)", zip(ids, self.token_bytes(ids), strict=True))
            self._known |= set(ids)

    def _trim(self, db: sqlite3.Connection, size: Size) -> None:
        if self.cap is None:
            return
        if self._kept is None or self._kept.limit != self.cap:
            self._kept = Cap(db, self.cap)
        else:
            self._kept.add(db, size)

    # ---- export

    def export(self, folder: Path, format: str = "csv") -> list[Path]:
        """One file per table, for other tools; Parquet needs the package pyarrow."""
        if format not in WRITERS:
            raise unknown("export format", format, WRITERS)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for table in EXPORTED:
            rows: list[Row] = self.rollouts() if table == "rollouts" else self._read(table, "t.rowid")
            paths.append(folder / f"{table}.{format}")
            columns = list(rows[0]) if rows else [r["name"] for r in self.db.execute(f"PRAGMA table_info({table})")]
            write_rows(paths[-1], rows, columns)
        return paths


def begin_phase(store: Store, loop: Any) -> None:
    """Tell a store what a loop trains, with which rewards, how much it may keep, and what its token ids stand for."""
    policy = loop.learner.policy
    tokenizer = getattr(policy, "tokenizer", None)
    store.cap = loop.config.store_gb * 1e9
    store.token_bytes = None if tokenizer is None else partial(token_bytes, tokenizer)
    drawn = {role: getattr(learner.policy, "picture_shape", None) for role, learner in loop.learners.items()}
    store.shapes = {role: tuple(map(int, shape)) for role, shape in drawn.items() if shape is not None}
    weights = getattr(getattr(loop.source, "scorer", None), "weights", None)
    answers = getattr(policy, "score", None) is None
    store.begin(loop.phase, loop.role, answers, weights if isinstance(weights, dict) else None)


def void(_: object) -> None:
    """For a lambda whose value nobody reads."""


def _connect(path: Path) -> sqlite3.Connection:
    """A connection that one thread at a time uses: the one that made it, or the writer."""
    db = sqlite3.connect(path, timeout=30, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    return db


def _flush(db: sqlite3.Connection, path: Path) -> None:
    """Into the database as far as its readers allow; what they hold up is flushed where it lies, in the log beside it."""
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    with suppress(FileNotFoundError), open(f"{path}-wal", "rb") as log:
        getattr(os, "fdatasync", os.fsync)(log.fileno())


def _event(db: sqlite3.Connection, phase: str, step: int, kind: str, message: str) -> None:
    db.execute("INSERT INTO events (phase, step, kind, message) VALUES (?,?,?,?)", (phase, step, kind, message))


def _skipped_before(db: sqlite3.Connection, phase: str, step: int) -> float:
    query = "SELECT value FROM metrics WHERE phase = ? AND name = 'skipped' AND step < ? ORDER BY step DESC LIMIT 1"
    row = db.execute(query, (phase, step)).fetchone()
    return float(row[0]) if row else 0.0


def _forget(db: sqlite3.Connection, phase: str, step: int) -> None:
    for table in (*BY_TEXT, "links"):
        which = "SELECT id FROM rollouts WHERE phase = ? AND step >= ?"
        db.execute(f"DELETE FROM {table} WHERE id IN ({which})", (phase, step))
    for table in BY_STEP:
        db.execute(f"DELETE FROM {table} WHERE phase = ? AND step >= ?", (phase, step))
    db.execute("DELETE FROM rollups WHERE phase = ? AND bucket >= ?", (phase, step // BUCKET))
