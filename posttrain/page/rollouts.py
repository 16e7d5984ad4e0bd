"""Pages of answers: by step, best or worst first, of one prompt, or those that failed; each walks an index from where the last page ended.

Filters that no index knows (length, text, a component, why it stopped) are applied on the way, for at most BUDGET seconds a page; a page
that ran out of time says how far it came (`next`) and is continued from there. Steps are counted from 1.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from posttrain.core.codec import read
from posttrain.core.errors import UserError, unknown
from posttrain.page.pictures import last_drawn
from posttrain.page.series import finite
from posttrain.runs.reader import Reader

ORDERS = ("step", "newest", "best", "worst")
BUDGET = 0.05  # seconds of looking for one page
LIMIT = 200  # answers of a page at most
_CHUNK, _DEEP = 1000, 200  # rows looked at between two looks at the clock; fewer where texts are read
_FIRST = 50  # answers that tell whether a phase samples
_FEW = 50  # steps that are sorted, where more are searched along the index of rewards
_TEXT = 400  # characters of an answer in a list
_SAID, _TURNS = 2000, 64  # characters of one of several turns at most, and turns
_COLUMNS = (
    "r.id, r.phase, r.step, r.group_index, r.sample_index, r.prompt_id, r.role, r.total, r.adv, r.length, r.mean_logp, "
    "r.repetition, r.failed, r.stopped, r.version"
)
# what could not be scored is NaN in them, which JSON does not know, and older versions of SQLite refuse
_FINITE = "replace(replace(replace(b.rewards, ': NaN', ': null'), ': Infinity', ': null'), ': -Infinity', ': null')"
_COMPONENT = (
    f"(SELECT value FROM json_each(iif(json_valid({_FINITE}), {_FINITE}, NULL)) WHERE key = ?)"  # whatever its name is
)
_TEXTS = {"text": "b.text", "prompt": "COALESCE(b.prompt, g.prompt)"}
_BODY = (
    "SELECT b.id, {text} AS text, b.rewards, b.stop, {prompt} AS prompt FROM bodies b JOIN rollouts r ON r.id = b.id "
    "LEFT JOIN groups g ON g.phase = r.phase AND g.step = r.step AND g.group_index = r.group_index WHERE b.id IN ({marks})"
)


@dataclass(frozen=True)
class Filter:
    """Which answers; None and "" ask for nothing. Steps are those of the phase, counted from 1."""

    phase: str = ""
    first: int | None = None
    last: int | None = None
    prompt: str = ""
    low: float | None = None  # of the total reward
    high: float | None = None
    component: str = ""
    component_low: float | None = None
    component_high: float | None = None
    shortest: int | None = None
    longest: int | None = None
    stop: str = ""
    text: str = ""
    failed: bool = False
    role: str = ""
    order: str = "step"


@dataclass
class Walk:
    """An index to go along: what it is searched by, the columns that order it, and where to go on."""

    where: list[str]
    values: list[Any]
    keys: tuple[str, ...]
    down: bool = False
    residual: list[str] = field(default_factory=list)
    residual_values: list[Any] = field(default_factory=list)

    def query(self, at: list[Any] | None, deep: bool) -> tuple[str, list[Any]]:
        """The next chunk after a place, each row with whether the filters take it."""
        where, values = list(self.where), list(self.values)
        if at is not None:
            sign = "<" if self.down else ">"
            where.append(f"({', '.join(self.keys)}) {sign} ({', '.join('?' * len(self.keys))})")
            values += at
        order = ", ".join(f"{key}{' DESC' if self.down else ''}" for key in self.keys)
        taken = " AND ".join(self.residual) or "1"
        joins = (
            " LEFT JOIN bodies b ON b.id = r.id LEFT JOIN groups g ON g.phase = r.phase AND g.step = r.step "
            "AND g.group_index = r.group_index" if deep else ""
        )  # fmt: skip
        sql = f"SELECT {_COLUMNS}, ({taken}) AS taken FROM rollouts r{joins} WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ?"
        return sql, [*self.residual_values, *values, _DEEP if deep else _CHUNK]

    def place(self, row: Any) -> list[Any]:
        return [row[key.lstrip("+").removeprefix("r.")] for key in self.keys]


def walk_for(wanted: Filter) -> tuple[Walk, bool]:
    """The index that serves a filter best, and whether texts must be read."""
    if wanted.order not in ORDERS:
        raise unknown("order", wanted.order, ORDERS)
    keys: tuple[str, ...]
    steps: list[tuple[str, Any]] = [] if wanted.first is None else [("r.step >= ?", wanted.first - 1)]
    steps += [] if wanted.last is None else [("r.step <= ?", wanted.last - 1)]
    rewards: list[tuple[str, Any]] = [] if wanted.low is None else [("r.total >= ?", wanted.low)]
    rewards += [] if wanted.high is None else [("r.total <= ?", wanted.high)]
    down = wanted.order in ("best", "newest")
    ranked = wanted.order in ("best", "worst")
    few = wanted.first is not None and wanted.last is not None and wanted.last - wanted.first < _FEW
    base: list[tuple[str, Any]] = [("r.phase = ?", wanted.phase)]
    if wanted.prompt:
        keys = ("+r.total", "+r.id") if ranked else ("r.step", "r.id")
        walk, rest = _walk([("r.prompt_id = ?", wanted.prompt), *base, *steps], keys, down), rewards
    elif wanted.failed:  # without a reward there is neither a best nor a worst
        walk, rest = _walk([*base, *steps], ("r.step", "r.id"), down), rewards
        walk.where.append("r.failed")
    elif ranked and not few:
        walk, rest = _walk([*base, *rewards], ("r.total", "r.id"), down), steps
        walk.where.append("r.total IS NOT NULL")
    else:
        keys = ("+r.total", "+r.id") if ranked else ("r.step", "r.group_index", "r.sample_index")
        walk, rest = _walk([*base, *steps], keys, down), rewards
    if ranked and "r.total IS NOT NULL" not in walk.where and not wanted.failed:
        walk.where.append("+r.total IS NOT NULL")
    for condition, value in rest:
        walk.residual.append(condition)
        walk.residual_values.append(value)
    return walk, _residual(walk, wanted)


def _walk(conditions: list[tuple[str, Any]], keys: tuple[str, ...], down: bool) -> Walk:
    return Walk([c for c, _ in conditions], [v for _, v in conditions], keys, down)


def _residual(walk: Walk, wanted: Filter) -> bool:
    """Add what no index knows; returns whether it needs the texts."""
    like = "%" + wanted.text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    table: list[tuple[bool, str, list[Any]]] = [
        (wanted.shortest is not None, "r.length >= ?", [wanted.shortest]),
        (wanted.longest is not None, "r.length <= ?", [wanted.longest]),
        (bool(wanted.role), "r.role = ?", [wanted.role]),
        (bool(wanted.stop), "b.stop = ?", [wanted.stop]),
        (wanted.component_low is not None, f"{_COMPONENT} >= ?", [wanted.component, wanted.component_low]),
        (wanted.component_high is not None, f"{_COMPONENT} <= ?", [wanted.component, wanted.component_high]),
        (bool(wanted.text), "(b.text LIKE ? ESCAPE '\\' OR COALESCE(b.prompt, g.prompt) LIKE ? ESCAPE '\\')", [like, like]),
    ]  # fmt: skip
    for asked, condition, values in table:
        if asked:
            walk.residual.append(f"COALESCE({condition}, 0)")
            walk.residual_values += values
    return any(asked and ("b." in condition) for asked, condition, _ in table)


def page(reader: Reader, wanted: Filter, limit: int = 50, at: list[Any] | None = None) -> dict[str, Any]:
    """One page: rows, `next` (where to go on; None at the end), `looked` (rows looked at), `complete` (the page is full or all was seen)."""
    if reader.version == 1:
        raise UserError(
            "this run was written by an earlier version, whose answers cannot be paged through; posttrain samples reads them"
        )
    if not 1 <= limit <= LIMIT:
        raise UserError(f"limit is {limit}; it must be 1 to {LIMIT}")
    walk, deep = walk_for(wanted)
    if at is not None and len(at) != len(walk.keys):
        raise UserError("this place is of another order of answers; begin again without it")
    found: list[Any] = []
    looked, began, ended = 0, time.monotonic(), False
    while len(found) < limit and not ended:
        query, values = walk.query(at, deep)
        chunk = reader.db.execute(query, values).fetchall()
        ended = len(chunk) < (_DEEP if deep else _CHUNK)
        for row in chunk:
            at, looked = walk.place(row), looked + 1
            if row["taken"]:
                found.append(row)
                if len(found) == limit:
                    ended = ended and row is chunk[-1]
                    break
        if time.monotonic() - began > BUDGET:
            break
    rows = with_texts(reader, [dict(row) for row in found])
    return {"rows": rows, "next": None if ended else at, "looked": looked, "complete": ended or len(found) == limit}


def with_texts(reader: Reader, rows: list[dict[str, Any]], characters: int = _TEXT) -> list[dict[str, Any]]:
    """Rows of figures with the beginnings of their texts, where those are stored."""
    marks = ",".join("?" * len(rows))
    begins = {
        k: f"substr(CAST({v} AS BLOB), 1, {4 * characters + 4})" for k, v in _TEXTS.items()
    }  # as text it would end at a NUL
    query = _BODY.format(marks=marks, **begins)
    bodies = {b["id"]: dict(b) for b in reader.db.execute(query, [row["id"] for row in rows])} if rows else {}
    for body in bodies.values():
        long = {k: (body[k] or b"").decode("utf-8", "ignore") for k in _TEXTS}
        body |= {k: v[:characters] for k, v in long.items()} | {"cut": len(long["text"]) > characters}
    said = turns_said(reader, list(bodies), min(characters, _SAID))
    drew = last_drawn(reader, [row for row in rows if row["id"] in bodies])
    return [
        shown(row, bodies.get(row["id"])) | {"said": said.get(row["id"]), "picture": drew.get(row["id"])}
        for row in rows
    ]


def written(reader: Reader, phase: str) -> bool:
    """Whether the answers of a phase are those of a data set (demonstrations, pairs) and not sampled: the log-probability of every token is
    stored as exactly 0, which no sampler's first answers are."""
    query = "SELECT mean_logp, version FROM rollouts WHERE phase = ? ORDER BY step, group_index, sample_index LIMIT ?"
    found = reader.db.execute(query, (phase, _FIRST)).fetchall() if reader.version > 1 else []
    return bool(found) and all(logp == 0 and not version for logp, version in found)


def turns_said(reader: Reader, ids: list[int], characters: int) -> dict[int, list[str]]:
    """Of answers of several turns: how each of them begins, the first few."""
    query = (
        f"SELECT id, substr(CAST(text AS BLOB), 1, {4 * characters + 4}) AS text FROM turns WHERE id IN ({','.join('?' * len(ids))}) "
        f"AND turn < {_TURNS} AND text IS NOT NULL ORDER BY id, turn"
    )
    out: dict[int, list[str]] = {}
    for id, text in reader.db.execute(query, ids) if ids else ():
        out.setdefault(id, []).append(
            (text or b"").decode("utf-8", "ignore")[:characters]
        )  # of nothing SQLite makes NULL
    return out


def components(text: Any) -> dict[str, Any]:
    """The rewards of an answer by name; of a damaged file none."""
    try:
        found = read(text)
    except (ValueError, TypeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def shown(row: dict[str, Any], body: Any) -> dict[str, Any]:
    """A row as the page gets it: steps from 1, numbers that JSON knows."""
    out = {k: row[k] for k in ("phase", "group_index", "sample_index", "prompt_id", "role", "length", "version")}
    out |= {k: finite(row[k]) for k in ("total", "adv", "mean_logp", "repetition")}
    out |= {
        "step": row["step"] + 1,
        "failed": bool(row["failed"]),
        "stopped": bool(row["stopped"]),
        "stored": body is not None,
    }
    out["rewards"] = {k: finite(v) for k, v in components(body["rewards"] if body is not None else None).items()}
    return out | {k: body[k] if body is not None else None for k in ("prompt", "text", "stop", "cut")}


def scatter(reader: Reader, phase: str, points: int = 2000) -> dict[str, Any]:
    """step, reward and length of at most so many answers, every k-th by id: a picture of a run of any size."""
    query = "SELECT (SELECT MIN(id) FROM rollouts), (SELECT MAX(id) FROM rollouts)"  # both at once would read every row
    low, high = reader.db.execute(query).fetchone() if reader.version > 1 else (None, None)
    if low is None or high is None:
        return {"points": [], "every": 1}
    every = max(1, -(-(high - low + 1) // points))
    ids = range(low, high + 1, every)
    found = []
    for at in range(0, len(ids), 500):
        some = list(ids[at : at + 500])
        query = f"SELECT id, phase, step, group_index, sample_index, total, length FROM rollouts WHERE id IN ({','.join('?' * len(some))})"
        found += reader.db.execute(query, some).fetchall()
    kept = [r for r in found if r["phase"] == phase and r["total"] is not None]
    return {
        "every": every,
        "points": [[r["step"] + 1, r["group_index"], r["sample_index"], finite(r["total"]), r["length"]] for r in kept],
    }
