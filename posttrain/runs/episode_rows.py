"""What an answer has to do with others, and the tools that it called, as rows of the database.

`links`: which episode it is of, where that is not its place in the group (several roles), and the answer that it forked from with the
number of actions they share. `moves`: where several roles took turns, when each of an answer's was made. `calls`: by turn, what
`Rollout.info["calls"]` says: a list per turn of {name, arguments, result, fault, repaired, seconds}; or `Rollout.info["tools"]`, a record
per turn of calls and of sentences about those that could not be made.
"""

from __future__ import annotations

from typing import Any

from posttrain.core.types import Group, Rollout
from posttrain.runs.schema import as_json

FIELDS = ("name", "arguments", "result", "fault", "repaired", "seconds")
_LONG = 4000  # characters of an argument or a result
_MANY = 32  # calls of a turn


def link_of(id: int, place: int, r: Rollout, group: Group) -> list[tuple[Any, ...]]:
    """id, episode, parent (its place in the group; -1: no longer there), at. Nothing for an answer that stands alone."""
    if r.branch is None:
        return [] if r.index == place else [(id, r.index, None, None)]
    whom = r.branch.parent
    there = group.rollouts
    own = whom < len(there) and there[whom].index == whom  # as it is unless some were taken out
    parent = whom if own else next((k for k, x in enumerate(there) if x.index == whom), -1)
    return [(id, r.index, parent, r.branch.at)]


def calls_of(id: int, r: Rollout) -> list[tuple[int, int, str]]:
    """id, turn, JSON of its calls, each with the fields above alone; what is something else is left out."""
    told = r.info.get("calls", _by_turn(r.info.get("tools")))
    if not isinstance(told, list | tuple):
        return []
    out = []
    for turn, made in enumerate(told[: len(r.turns)]):
        some = _made(made)
        kept = [{k: _short(c[k]) for k in FIELDS if c.get(k) is not None} for c in some[:_MANY] if isinstance(c, dict)]
        if kept:
            out.append((id, turn, as_json(kept)))
    return out


def moves_of(id: int, r: Rollout) -> list[tuple[int, str]]:
    """id, and the places of its turns among those of all roles of its episode, as `Rollout.info["order"]` has them."""
    order = _listed(r.info.get("order"))
    whole = bool(order) and len(order) == len(r.turns) and all(type(k) is int for k in order)
    return [(id, as_json(order))] if whole else []


def _by_turn(records: Any) -> list[list[Any]]:
    """The calls of each turn, then its faults."""
    known = [t if isinstance(t, dict) else {} for t in _listed(records)]
    return [[*_listed(t.get("calls")), *({"fault": fault} for fault in _listed(t.get("faults")))] for t in known]


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, list | tuple) else []


def _made(told: Any) -> list[Any]:
    """The calls of one turn, however they are told."""
    if isinstance(told, dict) and isinstance(told.get("calls"), list):
        return [*told["calls"], *({"fault": text} for text in told.get("faults") or ())]
    return [told] if isinstance(told, dict) else list(told) if isinstance(told, list | tuple) else []


def _short(x: Any) -> Any:
    """A value that JSON knows, not longer than a person reads."""
    if isinstance(x, bool | int | float):
        return x
    text = x if isinstance(x, str) else as_json(x)
    return text if len(text) <= _LONG else f"{text[:_LONG]} … ({len(text)} characters)"
