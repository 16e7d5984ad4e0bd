"""An episode as it went: the turns of all its roles in order of time, each with its text, what was seen before it, and the tools it called."""

from __future__ import annotations

import json
from typing import Any

from posttrain.page.answers import calls, episode_of, group
from posttrain.page.pieces import pieces_of
from posttrain.page.series import finite
from posttrain.runs.reader import Reader

_TEXT = 20_000  # characters of a turn
_SEEN = 4000  # tokens of what was observed before one
_TURNS = 400  # turns of an episode
Turn = dict[str, Any]


def episode(reader: Reader, phase: str, step: int, index: int, sample: int) -> dict[str, Any]:
    """Every turn of the episode that this answer is of; `ordered`: whether it is known who moved when, else role after role."""
    head = group(reader, phase, step, index)
    mine = next((a for a in head["answers"] if a["sample_index"] == sample), head["answers"][0])
    roles = [a for a in head["answers"] if episode_of(a) == episode_of(mine)]
    known = {a["sample_index"]: places(reader, (phase, step - 1, index, a["sample_index"])) for a in roles}
    turns = [t for a in roles for t in _turns(reader, (phase, step - 1, index, a["sample_index"]), a["role"])]
    ordered = len(roles) == 1 or all(known[a["sample_index"]] for a in roles)
    if ordered and len(roles) > 1:
        turns = [t for t in turns if t["turn"] < len(known[t["sample_index"]])]
        turns.sort(key=lambda t: known[t["sample_index"]][t["turn"]])
    kept = turns[:_TURNS]
    _spell(reader, kept)
    named = {k: head[k] for k in ("phase", "step", "group_index", "prompt_id", "prompt", "gold", "weights")}
    told = ("sample_index", "role", "total", "adv", "failed", "stop", "length", "rewards")
    return named | {
        "episode": episode_of(mine), "roles": [{k: a[k] for k in told} for a in roles],
        "turns": kept, "ordered": ordered, "left_out": len(turns) - len(kept),
    }  # fmt: skip


def places(reader: Reader, key: tuple[str, int, int, int]) -> list[int]:
    """When the turns of an answer were made, among those of all roles; empty where that was not written down."""
    if not reader.has("moves"):
        return []
    query = (
        "SELECT m.places FROM rollouts r JOIN moves m ON m.id = r.id "
        "WHERE r.phase = ? AND r.step = ? AND r.group_index = ? AND r.sample_index = ?"
    )
    row = reader.db.execute(query, key).fetchone()
    try:
        found = json.loads(row[0]) if row else []
    except (ValueError, TypeError, RecursionError):  # a damaged file
        found = []
    return found if isinstance(found, list) and all(type(k) is int for k in found) else []


def _turns(reader: Reader, key: tuple[str, int, int, int], role: str) -> list[Turn]:
    called = calls(reader, key)
    return [
        {
            "role": role, "sample_index": key[-1], "turn": k, "text": (t["text"] or "")[:_TEXT], "cut": len(t["text"] or "") > _TEXT,
            "reward": finite(t.get("reward")), "credit": credit(t), "tokens": len(t["tokens"] or []), "calls": called.get(k, []),
            "continues": bool(t.get("continues")), "ids": t.get("seen") or [],
        }
        for k, t in enumerate(reader.turns(*key))
    ]  # fmt: skip


def credit(turn: Turn) -> float | None:
    """The mean advantage of what the role itself wrote in a turn."""
    adv, mask = turn.get("adv"), turn.get("mask")
    own = [a for k, a in enumerate(adv or []) if mask is None or (k < len(mask) and mask[k])]
    return finite(sum(own) / len(own)) if own and all(isinstance(a, int | float) for a in own) else None


def _spell(reader: Reader, turns: list[Turn]) -> None:
    """What was observed before each turn, as text in place of token ids."""
    pieces = pieces_of(reader, sorted({i for t in turns for i in t["ids"][:_SEEN] if isinstance(i, int)}))
    for t in turns:
        seen = t.pop("ids")
        t["observed"] = len(seen)
        t["seen"] = "".join(pieces.get(i, f"#{i}") for i in seen[:_SEEN])
