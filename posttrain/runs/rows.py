"""From the groups of a step to rows of the database: what must be read at once is copied, the rest is done by the writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from posttrain.core.codec import FIGURES, STREAMS, encode, read
from posttrain.core.turn import Turn
from posttrain.core.types import Group, Rollout
from posttrain.runs.episode_rows import calls_of, link_of, moves_of
from posttrain.runs.pictures import Held, Shapes, insert_pictures
from posttrain.runs.schema import as_json
from posttrain.runs.streams import alike, array, arrays, blobs

_TURN = ("id", "turn", "text", "reward", "continues", "seen", *STREAMS)  # columns of the table
_GRAM = 4  # tokens of the n-grams whose repetition is counted
_MIX = np.uint64(0x9E3779B97F4A7C15)  # an odd number: n-grams that differ nearly always get numbers that differ
T = TypeVar("T", Turn, Rollout)
Row = tuple[Any, ...]
Pieces = Callable[[list[int]], list[bytes]]  # ids -> the bytes of each token


@dataclass
class Record:
    """A step as it was when it was logged."""

    phase: str
    step: int
    metrics: dict[str, float]
    seconds: float
    groups: list[Group]
    limit: int = -1  # rollouts whose text and tokens are kept; -1: all
    shapes: Shapes = field(default_factory=dict)  # of pictures that are flat vectors, by role


def frozen(groups: list[Group], shapes: Shapes) -> list[Group]:
    """The groups as they are now: parts may replace streams or rewards of a rollout later (tensors are never changed in place)."""
    out, held = [], Held(shapes)
    for g in groups:
        rollouts = []
        for r in g.rollouts:
            r = _copy(r)
            r.turns = [_copy(t) for t in r.turns]
            for t in r.turns:
                t.streams_T = dict(t.streams_T)
                if t.observation.streams:
                    t.observation = held(t.observation, r.role)
            r.rewards, r.info = dict(r.rewards), dict(r.info)
            rollouts.append(r)
        out.append(Group(g.prompt, rollouts))
    return out


def _copy(x: T) -> T:
    new = object.__new__(type(x))
    new.__dict__.update(x.__dict__)
    return new


# ---- the writer's side


def insert(db: sqlite3.Connection, record: Record) -> tuple[int, int]:
    """All rollouts of a step; returns the bytes of texts and streams, those of pinned answers apart."""
    if record.limit == 0:
        return 0, 0
    every = [(g, s, r) for g, group in enumerate(record.groups) for s, r in enumerate(group.rollouts)]
    rollouts = [r for _, _, r in every]
    pinned = _extremes(rollouts)
    first = int(db.execute("SELECT COALESCE(MAX(id), 0) + 1 FROM rollouts").fetchone()[0])
    sizes, rows, most = [0, 0], Rows(), len(every) if record.limit < 0 else record.limit
    figures, written = _figures(rollouts), iter(_streams(rollouts[:most]))
    for n, (g, s, r) in enumerate(every):
        kept = n < most
        rows.links += link_of(first + n, s, r, record.groups[g])
        pin = kept and n in pinned
        rows.rollouts.append((first + n, record.phase, record.step, g, s, *figures[n], int(pin)))
        if kept and s == 0:
            rows.groups.append(_group(record, g))
            sizes[0] += _size(rows.groups[-1])
        if kept:
            sizes[pin] += rows.add(first + n, record.groups[g], r, written)
    rows.write(db)
    sizes[0] += insert_pictures(db, (record.phase, record.step), record.groups, record.shapes)
    return sizes[0], sizes[1]


def _streams(rollouts: list[Rollout]) -> list[Row]:
    """actions, logp, mask, adv and the figures of every turn, in order, as they are kept."""
    turns = [t for r in rollouts for t in r.turns]
    adv, *figures = ([t.streams_T.get(name) for t in turns] for name in ("adv", *FIGURES))
    exact = (blobs([t.actions for t in turns]), blobs([t.logp_T for t in turns]), blobs([t.mask_T for t in turns]))
    return list(zip(*exact, blobs(adv), *(blobs(x, half=True) for x in figures), strict=True))


def _extremes(rollouts: list[Rollout]) -> set[int]:
    """The places of the best and of the worst answer of a step: they are kept longest."""
    scored = [(r.total, n) for n, r in enumerate(rollouts) if r.reward is not None and not r.failed]
    return {min(scored)[1], max(scored, key=lambda x: (x[0], -x[1]))[1]} if scored else set()


@dataclass
class Rows:
    """Rows of a step, by table."""

    rollouts: list[Row] = field(default_factory=list)
    groups: list[Row] = field(default_factory=list)
    bodies: list[Row] = field(default_factory=list)
    turns: list[Row] = field(default_factory=list)
    links: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    moves: list[Row] = field(default_factory=list)

    def add(self, id: int, group: Group, r: Rollout, written: Iterator[Row]) -> int:
        """Text and turns of a rollout, whose streams come next; returns their bytes."""
        asked = r.info.get("asked", r.prompt.last)
        own = None if asked == group.prompt.last else clean(str(asked))
        body = (id, own, clean(r.text), as_json(r.rewards), r.stop)
        self.bodies.append(body)
        shared = group.rollouts[0].turns[0].observation.tokens
        size = _size(body)
        for k, t in enumerate(r.turns):
            seen = t.observation.tokens
            seen_blob = None if k == 0 and (seen is shared or torch.equal(seen, shared)) else stream(seen)
            text = clean(t.text) if len(r.turns) > 1 else None  # the text of a single turn is the body's
            row = (id, k, text, t.reward, int(t.continues), seen_blob, *next(written))
            self.turns.append(row)
            size += _size(row)
        called = calls_of(id, r)
        moved = moves_of(id, r)
        self.calls += called
        self.moves += moved
        return size + sum(map(_size, (*called, *moved)))

    def write(self, db: sqlite3.Connection) -> None:
        for table in ("groups", "rollouts", "bodies", "turns", "links", "calls", "moves"):
            rows = getattr(self, table)
            named = (
                f" ({', '.join(_TURN)})" if table == "turns" else ""
            )  # one of an earlier version has streams in another order
            if rows:
                db.executemany(f"INSERT INTO {table}{named} VALUES ({','.join('?' * len(rows[0]))})", rows)


def _size(row: Row) -> int:
    return sum(len(x) for x in row if isinstance(x, bytes | str))


def _figures(rollouts: list[Rollout]) -> list[Row]:
    """Of each: prompt_id, role, reward, total, adv, length, mean_logp, repetition, failed, stopped, version."""
    rows = [r.row for r in rollouts]
    own = arrays([row.mask_T.bool() for row in rows])
    adv, logp = means([row.streams_T.get("adv") for row in rows], own), means([row.logp_T for row in rows], own)
    again = repetitions([row.actions for row in rows])
    return [
        (clean(r.prompt.id), r.role, r.reward, _total(r), adv[n], sum(map(len, r.turns)), logp[n], again[n], int(r.failed),
         int(not r.truncated), r.version)
        for n, r in enumerate(rollouts)
    ]  # fmt: skip


def _total(r: Rollout) -> float | None:
    return None if r.failed or (r.reward is None and all(t.reward is None for t in r.turns)) else r.total


def means(streams: Sequence[Tensor | None], own: list[Any]) -> list[float | None]:
    """The mean of each over the policy's own actions, summed in double precision."""
    kept = [None if x is None else x[mine] for x, mine in zip(arrays(streams), own, strict=True)]
    return [float(x.sum(dtype=np.float64) / len(x)) if x is not None and len(x) else None for x in kept]


def repetitions(actions: list[Tensor]) -> list[float | None]:
    """Of each 1 - distinct / all n-grams of 4 token ids; None where there are none."""
    if not alike(actions) or actions[0].is_floating_point():
        return [repetition(x) for x in actions]
    x = torch.cat(actions).cpu().numpy().astype(np.uint64)
    grams = x.copy()
    for k in range(1, _GRAM):
        grams *= _MIX
        grams[:-k] += x[k:]  # those that reach into the next answer are not looked at
    ends = pairwise(accumulate(map(len, actions), initial=0))
    return [_repeated(grams[a : b - _GRAM + 1]) if b - a >= _GRAM else None for a, b in ends]


def repetition(actions: Tensor) -> float | None:
    """The same of one."""
    plain = actions.dim() == 1 and not actions.is_floating_point()
    return repetitions([actions])[0] if plain and len(actions) >= _GRAM else None


def _repeated(grams: np.ndarray[Any, Any]) -> float:
    grams.sort()
    return 1.0 - (1 + int(np.count_nonzero(grams[1:] != grams[:-1]))) / len(grams)


def _group(record: Record, g: int) -> Row:
    """phase, step, group_index, prompt_id, prompt, messages, gold, tokens."""
    prompt, first = record.groups[g].prompt, record.groups[g].rollouts[0]
    messages = as_json(prompt.content) if len(prompt.content) > 1 else None
    gold = None if prompt.answer is None else as_json(prompt.answer)
    tokens = stream(first.turns[0].observation.tokens)
    return (record.phase, record.step, g, clean(prompt.id), clean(prompt.last), messages, gold, tokens)


def stream(x: Tensor | None) -> bytes | None:
    return None if x is None else encode(array(x))


def clean(text: str) -> str:
    """Text that SQLite takes: half a surrogate pair, which is no character, becomes its escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def new_ids(groups: list[Group], known: set[int]) -> list[int]:
    """Token ids that occur in these groups for the first time."""
    found = [x for g in groups for r in g.rollouts for t in r.turns for x in (t.actions, t.observation.tokens)]
    ids = [x for x in found if x.dim() == 1 and x.numel() and not x.is_floating_point()]
    return (
        [i for i in np.unique(np.concatenate([x.cpu().numpy() for x in ids])).tolist() if i not in known] if ids else []
    )


# ---- from version 1


def from_version_1(db: sqlite3.Connection, id: int, row: sqlite3.Row) -> int:
    """A row of the old table as figures, a body and one turn; returns the bytes."""
    key = (id, row["phase"], row["step"], row["group_index"], row["sample_index"])
    streams = {k: read(row[k]) for k in ("tokens", "logp", "mask", "adv")}
    own = [bool(m) for m in streams["mask"] or []]
    mean = {k: _mean(streams[k], own) for k in ("adv", "logp")}
    tokens = torch.tensor(streams["tokens"] or [])
    figures = (
        row["prompt_id"], "policy", row["reward"], row["reward"], mean["adv"], len(tokens), mean["logp"], repetition(tokens),
        row["failed"], row["stopped"], row["version"], 0,
    )  # fmt: skip
    blobs = dict(_packed(streams))
    body = (id, row["prompt"], row["text"], row["rewards"], "stop" if row["stopped"] else "length")
    turn = (
        id,
        0,
        None,
        None,
        0,
        None,
        *(blobs[k] for k in ("tokens", "logp", "mask", "adv")),
        *(None for _ in FIGURES),
    )
    Rows([(*key, *figures)], [], [body], [turn]).write(db)
    group = (row["phase"], row["step"], row["group_index"], row["prompt_id"], row["prompt"])
    db.execute("INSERT OR IGNORE INTO groups (phase, step, group_index, prompt_id, prompt) VALUES (?,?,?,?,?)", group)
    return _size(body) + _size(turn)


def _packed(streams: dict[str, Any]) -> Iterator[tuple[str, bytes | None]]:
    kinds = {"tokens": None, "logp": torch.float32, "mask": torch.bool, "adv": torch.float32}
    for name, kind in kinds.items():
        yield name, None if streams[name] is None else stream(torch.tensor(streams[name], dtype=kind))


def _mean(values: list[Any] | None, own: list[bool]) -> float | None:
    if not values or not any(own) or isinstance(values[0], list):
        return None
    return float(sum(v for v, m in zip(values, own, strict=True) if m) / sum(own))
