"""A group whose answers fork from one another, as a tree: who left whom after how many tokens, and what each wrote from there on."""

from __future__ import annotations

from typing import Any

from posttrain.core.codec import last_context
from posttrain.core.errors import UserError
from posttrain.page.pieces import pieces_of
from posttrain.page.series import finite
from posttrain.runs.reader import Reader

MOST = 600  # answers of a tree
_TEXT = 300  # characters of what an answer wrote from its fork on


def links(reader: Reader, ids: list[int]) -> dict[int, dict[str, Any]]:
    """id -> the episode it is of, its parent's place in the group (-1: not stored) and the actions they share."""
    if not ids or not reader.has("links"):
        return {}
    out: dict[int, dict[str, Any]] = {}
    for at in range(0, len(ids), 500):
        some = ids[at : at + 500]
        query = f"SELECT id, episode, parent, at FROM links WHERE id IN ({','.join('?' * len(some))})"
        out |= {row["id"]: {k: row[k] for k in ("episode", "parent", "at")} for row in reader.db.execute(query, some)}
    return out


def tree(reader: Reader, phase: str, step: int, group: int) -> dict[str, Any]:
    """Every answer of a group as a node; one without a parent begins at the prompt."""
    query = (
        "SELECT id, sample_index, total, adv, length, failed, stopped FROM rollouts WHERE phase = ? AND step = ? AND group_index = ? "
        "ORDER BY sample_index LIMIT ?"
    )
    rows = [dict(r) for r in reader.db.execute(query, (phase, step - 1, group, MOST))]
    every = "SELECT COUNT(*) FROM rollouts WHERE phase = ? AND step = ? AND group_index = ?"
    made = reader.db.execute(every, (phase, step - 1, group)).fetchone()[0]
    linked = links(reader, [r["id"] for r in rows])
    if not any(link["parent"] is not None for link in linked.values()):
        raise UserError(f"the answers to prompt {group + 1} of step {step} do not fork from one another")
    nodes = [_node(reader, r, linked.get(r["id"])) for r in rows]
    places = {n["sample_index"] for n in nodes}
    ids = sorted({i for n in nodes for i in n["ids"]})
    pieces = pieces_of(reader, ids)
    for n in nodes:
        told = [pieces.get(i, f"#{i}") for i in n.pop("ids")]
        n["own"] = "".join(told)[:_TEXT]
        n["parent"] = n["parent"] if n["parent"] in places and n["parent"] != n["sample_index"] else None
    return {"nodes": nodes, "left_out": made - len(rows)}


def _node(reader: Reader, row: dict[str, Any], link: dict[str, Any] | None) -> dict[str, Any]:
    out = {"sample_index": row["sample_index"], "length": row["length"], "stopped": bool(row["stopped"])}
    out |= {"total": None if row["failed"] else finite(row["total"]), "adv": finite(row["adv"])}
    parent, at = (link["parent"], link["at"] or 0) if link else (None, 0)
    tokens = last_context(reader.turns_of(row["id"]))["tokens"] or []
    flat = [i for i in tokens if isinstance(i, int)]
    return out | {"parent": parent, "at": min(at, row["length"]), "ids": flat[at : at + _TEXT]}
