"""The tensors of all learners of a loop as the tables of one checkpoint, and back."""

from __future__ import annotations

from typing import Any

from posttrain.runs.tables import Tables


def learner_tables(learners: dict[str, Any]) -> tuple[Tables, dict[str, str]]:
    """Tables of all learners: the first one's by their own names, the others' under their role; shared weights once. And the
    dtypes of the first one's weights that are left out, being their masters rounded."""
    out: Tables = {}
    known: set[int] = set()
    rounded: dict[str, str] = {}
    for i, (role, learner) in enumerate(learners.items()):
        tables = learner.tensors()
        if id(learner.policy) in known:
            tables.pop("weights")
        elif i == 0:
            rounded = {name: kind for name, kind in learner.masters.rounded().items() if name in tables["weights"]}
            tables["weights"] = {name: x for name, x in tables["weights"].items() if name not in rounded}
        known.add(id(learner.policy))
        out |= tables if i == 0 else {f"{role}.{name}": table for name, table in tables.items()}
    return out, rounded


def tables_in_rows(learners: dict[str, Any]) -> dict[str, list[str]]:
    """By table, the tensors of which every process has its own rows; empty where there is one process."""
    out: dict[str, list[str]] = {}
    known: set[int] = set()
    for i, (role, learner) in enumerate(learners.items()):
        found = {table: names for table, names in learner.rows().items() if names}
        if id(learner.policy) in known:
            found.pop("weights", None)
        known.add(id(learner.policy))
        out |= found if i == 0 else {f"{role}.{table}": names for table, names in found.items()}
    return out


def load_learners(learners: dict[str, Any], tables: Tables, states: dict[str, Any]) -> None:
    """The reverse."""
    for i, (role, learner) in enumerate(learners.items()):
        head = "" if i == 0 else f"{role}."
        mine = {name.removeprefix(head): table for name, table in tables.items() if name.startswith(head)}
        learner.load(mine, states[role])
