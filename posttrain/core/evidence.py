"""The evidence for a part, by what was run: never a level without the file that shows it.

derived  a test declares that its values and gradients are derived by hand for this part: `@pytest.mark.derived("advantage/grpo")`
         (a method, or a plan: every part of it that computes has such a test)
learns   a test declares that a tabular policy improves with it: `@pytest.mark.learns(...)`
table    the paper's claim as an experiment on a lookup table        claims/<family>/<id>.jsonl
pocket   the same with the language model that comes with posttrain  the same
real     measured with a published language model                    claims/scale/<id>.json

Experiments count their attempts: `table: shown (attempt 3)`. All of it comes from the index.
"""

from __future__ import annotations

from typing import Any

from posttrain.core.index import Row, index

TESTED = ("derived", "learns")
RUN = ("table", "pocket", "real")
LEVELS = (*TESTED, *RUN)


def evidence(row: Row) -> dict[str, Any]:
    """Level -> whether tests stand behind it, or how the last experiment of that level came out; None where there is none.

    {"derived": True, "learns": False, "table": {"verdict": "shown", "attempt": 3, "stale": False, "file": ...}, ...}
    """
    out: dict[str, Any] = {level: bool(row.get(level)) for level in TESTED}
    return out | {level: _run(row["id"], level) for level in RUN}


def _run(id: str, level: str) -> dict[str, Any] | None:
    """The last attempt of that level at the system's claim; for a real model, where no claim was made, what was measured."""
    claim = index()["claims"].get(id)
    tried = [a for a in claim["attempts"] if a["level"] == level] if claim else []
    if claim and tried:
        return as_run(claim, tried[-1])
    measured = index()["real"].get(id) if level == "real" else None
    return {"verdict": "measured", "file": measured["file"]} if measured else None


def as_run(claim: Row, made: Row) -> dict[str, Any]:
    """How an attempt at a claim came out. Only the last is stale, or of an earlier claim (other checks or seeds): those before are history."""
    last = made is claim["attempts"][-1]
    earlier = {"earlier": True} if last and made.get("earlier") else {}
    told = {"verdict": made["verdict"], "attempt": made["attempt"], "stale": claim["stale"] and last}
    return told | earlier | {"file": attempts_file(claim)}


def attempts_file(claim: Row) -> str:
    """The attempts at a claim stand beside its file."""
    return str(claim["file"]).removesuffix(".py") + ".jsonl"


def files(row: Row) -> dict[str, list[str]]:
    """What each level rests on: test ids, and files of results relative to the project."""
    found = {level: list(row.get(level, [])) for level in TESTED}
    return found | {level: [run["file"]] if (run := _run(row["id"], level)) else [] for level in RUN}


def in_words(levels: dict[str, Any]) -> str:
    """derived, learns, table: shown (attempt 3); `-` where there is nothing yet."""
    told = [level for level in TESTED if levels[level]]
    told += [f"{level}: {outcome(levels[level])}" for level in RUN if levels[level]]
    return ", ".join(told) or "-"


def outcome(run: dict[str, Any]) -> str:
    """shown (attempt 3); the code of a stale one has changed since, an earlier claim had other checks or seeds."""
    inside = [f"attempt {run['attempt']}"] if "attempt" in run else []
    inside += ["of an earlier claim"] if run.get("earlier") else ["stale"] if run.get("stale") else []
    return f"{run['verdict']} ({', '.join(inside)})" if inside else str(run["verdict"])
