"""The tables of run.sqlite, version 2, and the way from version 1. docs/store.md describes them for people who read them with SQL.

phases, roles      what ran, in order, and which role each phase trained
metrics, times     one number per name and step; `rollups` has them by hundred steps
rollouts           the figures of every answer, narrow, so that sorting and counting half a million is quick
bodies, turns      their texts and token streams (core/codec.py), as far as the size cap allows; `groups` has the prompts
links, calls       which episode an answer is of and where it forked from another; the tools that its turns called
moves              when its turns were made, among those of all roles of the episode
pictures, shapes   small pictures of what was observed; the shape of those that a policy draws
components         the weight of each reward in the total
pieces             the bytes of each token id that occurs
"""

from __future__ import annotations

import errno
import json
import sqlite3
from pathlib import Path
from typing import Any

from posttrain.core.codec import FIGURES
from posttrain.core.errors import UserError

VERSION = 2
BUCKET = 100  # steps of a roll-up
_LITTLE = 1 << 20  # bytes: with less free space than this, an I/O error of SQLite means a full disk
TABLES = """
CREATE TABLE IF NOT EXISTS phases (place INTEGER PRIMARY KEY, phase TEXT UNIQUE, finished INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS roles (phase TEXT PRIMARY KEY, role TEXT, answers INTEGER);
CREATE TABLE IF NOT EXISTS components (phase TEXT, name TEXT, weight REAL, PRIMARY KEY (phase, name));
CREATE TABLE IF NOT EXISTS metrics (phase TEXT, step INTEGER, name TEXT, value REAL, PRIMARY KEY (phase, step, name));
CREATE TABLE IF NOT EXISTS times (phase TEXT, step INTEGER, name TEXT, value REAL, PRIMARY KEY (phase, step, name));
CREATE INDEX IF NOT EXISTS metrics_series ON metrics (phase, name, step, value);
CREATE INDEX IF NOT EXISTS times_series ON times (phase, name, step, value);
CREATE TABLE IF NOT EXISTS rollups (
    phase TEXT, name TEXT, bucket INTEGER, n INTEGER, mean REAL, least REAL, most REAL,
    PRIMARY KEY (phase, name, bucket)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
    phase TEXT, step INTEGER, made INTEGER, bytes INTEGER, pinned_bytes INTEGER, PRIMARY KEY (phase, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups (
    phase TEXT, step INTEGER, group_index INTEGER, prompt_id TEXT, prompt TEXT, messages TEXT, gold TEXT, tokens BLOB,
    PRIMARY KEY (phase, step, group_index));
CREATE TABLE IF NOT EXISTS rollouts (
    id INTEGER PRIMARY KEY, phase TEXT, step INTEGER, group_index INTEGER, sample_index INTEGER, prompt_id TEXT, role TEXT,
    reward REAL, total REAL, adv REAL, length INTEGER, mean_logp REAL, repetition REAL, failed INTEGER, stopped INTEGER, version INTEGER,
    pinned INTEGER, UNIQUE (phase, step, group_index, sample_index));
CREATE INDEX IF NOT EXISTS rollouts_prompt ON rollouts (prompt_id, phase, step);
CREATE INDEX IF NOT EXISTS rollouts_total ON rollouts (phase, total);
CREATE INDEX IF NOT EXISTS rollouts_failed ON rollouts (phase, step) WHERE failed;
CREATE TABLE IF NOT EXISTS bodies (id INTEGER PRIMARY KEY, prompt TEXT, text TEXT, rewards TEXT, stop TEXT);
CREATE TABLE IF NOT EXISTS turns (
    id INTEGER, turn INTEGER, text TEXT, reward REAL, continues INTEGER, seen BLOB, tokens BLOB, logp BLOB, mask BLOB, adv BLOB,
    entropy BLOB, ratio BLOB, kl BLOB, value BLOB, versions BLOB, PRIMARY KEY (id, turn));
CREATE TABLE IF NOT EXISTS links (id INTEGER PRIMARY KEY, episode INTEGER, parent INTEGER, at INTEGER);
CREATE TABLE IF NOT EXISTS calls (id INTEGER, turn INTEGER, calls TEXT, PRIMARY KEY (id, turn));
CREATE TABLE IF NOT EXISTS moves (id INTEGER PRIMARY KEY, places TEXT);
CREATE TABLE IF NOT EXISTS pictures (
    phase TEXT, step INTEGER, group_index INTEGER, sample_index INTEGER, turn INTEGER, name TEXT, place INTEGER, width INTEGER,
    height INTEGER, low REAL, high REAL, png BLOB, PRIMARY KEY (phase, step, group_index, sample_index, turn, name, place));
CREATE TABLE IF NOT EXISTS shapes (phase TEXT, role TEXT, shape TEXT, PRIMARY KEY (phase, role));
CREATE TABLE IF NOT EXISTS pieces (id INTEGER PRIMARY KEY, bytes BLOB);
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, phase TEXT, step INTEGER, kind TEXT, message TEXT);
"""
BY_STEP = (
    "metrics",
    "times",
    "steps",
    "groups",
    "rollouts",
    "pictures",
    "events",
)  # tables whose rows belong to a step
BY_TEXT = ("bodies", "turns", "calls", "moves")  # and to an answer whose text is kept


def version_of(db: sqlite3.Connection, path: Path) -> int:
    """The version of a database that has tables; a newer one is a sentence."""
    found = int(db.execute("PRAGMA user_version").fetchone()[0]) or 1
    if found > VERSION:
        raise UserError(
            f"{path} has the format {found}, this version of posttrain reads up to {VERSION}; upgrade posttrain"
        )
    return found


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables, or bring those of an older version up to date; all of it or nothing."""
    there = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'phases'").fetchone()
    if there and version_of(db, path) == 1:
        _from_version_1(db)
    else:
        db.executescript(f"BEGIN; {TABLES} {_missing(db)} PRAGMA user_version = {VERSION}; COMMIT;")


def _missing(db: sqlite3.Connection) -> str:
    """Statements that add the streams which this database was made without."""
    there = {row[1] for row in db.execute("PRAGMA table_info(turns)")}
    return "".join(f"ALTER TABLE turns ADD COLUMN {name} BLOB; " for name in FIGURES if there and name not in there)


def _from_version_1(db: sqlite3.Connection) -> None:
    """Rollouts were one wide table with streams as JSON; they become figures, bodies and turns."""
    from posttrain.runs.rows import from_version_1

    db.execute("PRAGMA temp_store = FILE")
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("ALTER TABLE rollouts RENAME TO old_rollouts")
        for statement in TABLES.split(";"):
            db.execute(statement)
        sizes: dict[tuple[str, int], list[int]] = {}
        for id, row in enumerate(db.execute("SELECT * FROM old_rollouts ORDER BY rowid"), start=1):
            size = sizes.setdefault((row["phase"], row["step"]), [0, 0])
            size[0] += 1
            size[1] += from_version_1(db, id, row)
        db.executemany("INSERT INTO steps VALUES (?,?,?,?,0)", [(*key, *size) for key, size in sizes.items()])
        db.execute("DROP TABLE old_rollouts")
        roll_up_all(db)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def roll_up(db: sqlite3.Connection, phase: str, bucket: int) -> None:
    """The hundred steps that have just ended, by name: n, mean, least, most of the finite values."""
    db.execute(
        "INSERT OR REPLACE INTO rollups SELECT phase, name, ?, COUNT(value), AVG(value), MIN(value), MAX(value) FROM metrics "
        "WHERE phase = ? AND step >= ? AND step < ? GROUP BY name",
        (bucket, phase, bucket * BUCKET, (bucket + 1) * BUCKET),
    )


def roll_up_all(db: sqlite3.Connection) -> None:
    """Every hundred that is complete."""
    for phase, last in db.execute("SELECT phase, MAX(step) FROM metrics GROUP BY phase").fetchall():
        for bucket in range((last + 1) // BUCKET):
            roll_up(db, phase, bucket)


def open_readonly(path: Path) -> sqlite3.Connection:
    if not path.exists():
        raise UserError(f"no run in {path.parent}: there is no {path.name}")
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)
    try:
        db.execute("SELECT 1 FROM phases LIMIT 1")
        return db
    except sqlite3.OperationalError:  # WAL needs a writable folder; elsewhere a finished run is opened as it is
        db.close()
        return sqlite3.connect(f"{path.resolve().as_uri()}?immutable=1", uri=True)


def sentence(error: sqlite3.Error, path: Path) -> Exception:
    """SQLite's errors as a sentence about what to do."""
    from posttrain.runs.checkpoint import disk_error, free_space

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


def as_json(x: Any) -> str:
    """A value as JSON; what JSON does not know as its text."""
    return json.dumps(x, default=str)
