"""Reading the database of a run, of either version, while it is written or after; torch is not needed."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from posttrain.core.codec import FIGURES, STREAMS, last_context, read, turn
from posttrain.core.errors import UserError
from posttrain.runs.schema import BUCKET, open_readonly, sentence, version_of

Row = dict[str, Any]
_KEY = "r.phase, r.step, r.group_index, r.sample_index, r.prompt_id"
_FIGURES = "r.role, r.reward, r.total, r.adv, r.length, r.mean_logp, r.repetition, r.failed, r.stopped, r.version"
_BODIES = (
    f"SELECT {_KEY}, COALESCE(b.prompt, g.prompt) AS prompt, g.gold, b.text, r.reward, r.failed, b.rewards, r.version, r.stopped, "
    "b.stop, r.role, r.total, r.length, r.mean_logp, r.repetition, r.id FROM rollouts r JOIN bodies b ON b.id = r.id "
    "LEFT JOIN groups g ON g.phase = r.phase AND g.step = r.step AND g.group_index = r.group_index "
    "LEFT JOIN phases p ON p.phase = r.phase"
)
_SCORES = f"SELECT {_KEY}, {_FIGURES} FROM rollouts r LEFT JOIN phases p ON p.phase = r.phase"
_ORDER = {"step": "p.place, r.step, r.group_index, r.sample_index", "best": "r.total DESC", "worst": "r.total"}


class Reader:
    """A run's database for readers: nothing is created or changed."""

    db: sqlite3.Connection
    version: int  # of the tables

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._errors():
            self.db = open_readonly(path)
            self.db.row_factory = sqlite3.Row
            self.version = version_of(self.db, path)

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _current(self) -> None:
        """Called before every reading: a store that writes in the background waits for what is on its way."""

    # ---- phases

    def finished(self, phase: str) -> bool:
        self._current()
        row = self.db.execute("SELECT finished FROM phases WHERE phase = ?", (phase,)).fetchone()
        return bool(row and row[0])

    def phases(self) -> list[str]:
        """In the order they began."""
        self._current()
        return [row[0] for row in self.db.execute("SELECT phase FROM phases ORDER BY place")]

    def roles(self) -> dict[str, tuple[str, bool]]:
        """phase -> (role, whether it generates answers); empty for runs written before roles were recorded."""
        self._current()
        if not self.has("roles"):
            return {}
        return {phase: (role, bool(answers)) for phase, role, answers in self.db.execute("SELECT * FROM roles")}

    def weights(self, phase: str | None = None) -> dict[str, float]:
        """The weight of each reward in the total of a phase (the last one); empty where it is not known."""
        self._current()
        if not self.has("components"):
            return {}
        phase = phase if phase is not None else (self.phases() or [""])[-1]
        return dict(self.db.execute("SELECT name, weight FROM components WHERE phase = ?", (phase,)).fetchall())

    # ---- metrics

    def metrics(self, phase: str | None = None) -> list[Row]:
        """Rows of phase, step, name, value, in the order of phases, then steps, then names."""
        return self._read("metrics", "name", phase=phase)

    def times(self, phase: str | None = None) -> list[Row]:
        """Rows like those of metrics: the whole step is `seconds`."""
        return self._read("times", "name", phase=phase)

    def series(self, name: str, phase: str | None = None) -> list[tuple[int, float]]:
        """One metric (or time) as (step, value), phase after phase."""
        self._current()
        table = "times" if is_time(name) else "metrics"
        query = f"SELECT step, value FROM {table} WHERE phase = ? AND name = ? ORDER BY step"
        with self._errors():
            return [
                (step, math.nan if value is None else value)
                for each in ([phase] if phase is not None else self.phases())
                for step, value in self.db.execute(query, (each, name))
            ]

    def buckets(self, name: str, phase: str) -> list[Row]:
        """A metric by hundred steps: bucket, n, mean, least, most; the last, which may be growing, is counted now."""
        self._current()
        done = []
        if self.has("rollups"):
            query = "SELECT bucket, n, mean, least, most FROM rollups WHERE phase = ? AND name = ? ORDER BY bucket"
            done = [dict(r) for r in self.db.execute(query, (phase, name))]
        first = (done[-1]["bucket"] + 1) * BUCKET if done else 0
        query = (
            f"SELECT step / {BUCKET} AS bucket, COUNT(value) AS n, AVG(value) AS mean, MIN(value) AS least, MAX(value) AS most "
            "FROM metrics WHERE phase = ? AND name = ? AND step >= ? GROUP BY bucket ORDER BY bucket"
        )
        return [*done, *(dict(r) for r in self.db.execute(query, (phase, name, first)))]

    def names(self) -> list[str]:
        """Names of all metrics; the index is skipped through, not scanned."""
        found: set[str] = set()
        query = "SELECT MIN(name) FROM metrics WHERE phase = ? AND name > ?"
        for phase in self.phases():
            name = ""
            while (name := self.db.execute(query, (phase, name)).fetchone()[0]) is not None:
                found.add(name)
        return sorted(found)

    def events(self, kind: str | None = None) -> list[Row]:
        return self._read("events", "id", kind=kind)

    def _read(self, table: str, order: str, **where: Any) -> list[Row]:
        self._current()
        condition, values = _where("t", where)
        query = (
            f"SELECT t.* FROM {table} t LEFT JOIN phases p ON p.phase = t.phase "
            f"WHERE 1 = 1{condition} ORDER BY p.place, t.step, {order}"
        )
        with self._errors():
            return [_row(r) for r in self.db.execute(query, values)]

    # ---- rollouts

    def rollouts(self, step: int | None = None, phase: str | None = None) -> list[Row]:
        """Rollouts whose text is stored, with it, the gold answer, and tokens, logp, adv and mask of the last context as lists."""
        return list(self.each_rollout(step=step, phase=phase))

    def each_rollout(self, **where: Any) -> Iterator[Row]:
        """The same one by one, by any of phase, step, group_index, sample_index, prompt_id."""
        self._current()
        if self.version == 1:
            yield from (_old(r) for r in self._read("rollouts", "group_index, sample_index", **where))
            return
        condition, values = _where("r", where)
        with self._errors():
            for row in self.db.execute(f"{_BODIES} WHERE 1 = 1{condition} ORDER BY {_ORDER['step']}", values):
                out = dict(row)
                id = out.pop("id")
                out["rewards"], out["gold"] = read(out["rewards"]), read(out["gold"])
                yield out | last_context(self.turns_of(id))

    def turns(self, phase: str, step: int, group: int, sample: int) -> list[Row]:
        """The turns of a rollout, each with its text, reward and streams; `seen` are the ids observed before it."""
        self._current()
        if self.version == 1:
            where = {"phase": phase, "step": step, "group_index": group, "sample_index": sample}
            return [{k: r.get(k) for k in ("text", *STREAMS)} | {"turn": 0} for r in self.each_rollout(**where)]
        key = (phase, step, group, sample)
        query = (
            "SELECT r.id, b.text, g.tokens AS seen FROM rollouts r JOIN bodies b ON b.id = r.id LEFT JOIN groups g ON "
            "g.phase = r.phase AND g.step = r.step AND g.group_index = r.group_index "
            "WHERE r.phase = ? AND r.step = ? AND r.group_index = ? AND r.sample_index = ?"
        )
        found = self.db.execute(query, key).fetchone()
        out = self.turns_of(found["id"]) if found else []
        for t in out:
            t["text"] = found["text"] if t["text"] is None else t["text"]
            t["seen"] = read(found["seen"]) if t["seen"] is None and t["turn"] == 0 else t["seen"]
        return out

    def turns_of(self, id: int) -> list[Row]:
        rows = self.db.execute("SELECT * FROM turns WHERE id = ? ORDER BY turn", (id,))
        return [turn(dict(r)) for r in rows]

    def scores(self, order: str = "step", limit: int = -1, **where: Any) -> list[Row]:
        """The figures of every rollout that was made, with or without its text; order: step, best or worst.

        where: phase, step, group_index, prompt_id, failed, stopped, role.
        """
        self._current()
        if self.version == 1:
            raise UserError(
                f"{self.path} was written before the figures of answers were kept apart; read its rollouts instead"
            )
        if order != "step" and where.get("phase") is None:  # the index is by phase
            every = [row for phase in self.phases() for row in self.scores(order, limit, **where | {"phase": phase})]
            every.sort(key=lambda row: row["total"], reverse=order == "best")
            return every if limit < 0 else every[:limit]
        failed = where.pop("failed", None)
        condition, values = _where("r", where)
        condition += "" if failed is None else " AND r.failed" if failed else " AND NOT r.failed"  # as its index says
        condition += "" if order == "step" else " AND r.total IS NOT NULL"
        with self._errors():
            query = f"{_SCORES} WHERE 1 = 1{condition} ORDER BY {_ORDER[order]} LIMIT ?"
            return [dict(r) for r in self.db.execute(query, (*values, limit))]

    def made(self, phase: str) -> dict[int, int]:
        """step -> how many rollouts were made, stored or not."""
        self._current()
        if self.version == 1:
            query = "SELECT step, COUNT(*) FROM rollouts WHERE phase = ? GROUP BY step"
        else:
            query = "SELECT step, made FROM steps WHERE phase = ?"
        return dict(self.db.execute(query, (phase,)).fetchall())

    def pieces(self) -> dict[int, bytes]:
        """The bytes of each token id that occurs, special tokens by their names; empty where they are not known."""
        self._current()
        return dict(self.db.execute("SELECT id, bytes FROM pieces").fetchall()) if self.has("pieces") else {}

    def has(self, table: str) -> bool:
        return self.db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is not None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise sentence(error, self.path) from error


def is_time(name: str) -> bool:
    """Whether a figure depends on the clock: those differ between equal runs, so they are kept apart."""
    return name.rpartition("/")[2] in ("seconds", "tokens_per_second")


def _where(table: str, where: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
    where = {k: v for k, v in where.items() if v is not None}
    return "".join(f" AND {table}.{k} = ?" for k in where), tuple(where.values())


def _row(r: sqlite3.Row) -> Row:
    """SQLite has no NaN: a NULL metric stands for one."""
    out = dict(r)
    if "value" in out and out["value"] is None:
        out["value"] = math.nan
    return out


def _old(row: Row) -> Row:
    """A rollout of version 1: streams and components were JSON, and there was neither a gold answer nor figures of tokens."""
    out = {k: read(v) if k in ("rewards", *STREAMS) else v for k, v in row.items()}
    return out | {"gold": None, "role": "policy", "total": row["reward"], "turns": 1, **dict.fromkeys(FIGURES)}
