"""What the recorded attempts at a claim say. A file of attempts stands beside the claim's own: `dpo.py`, `dpo.jsonl`,
one attempt per line, oldest first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from claims.machinery.claim import Claim, claims, file_of
from claims.machinery.fingerprint import ROOT, fingerprint

_TOLD = ("attempt", "date", "verdict", "level", "seeds", "checks")  # of an attempt, in the index


def attempts_file(c: Claim, folder: Path | None = None) -> Path:
    """Beside the claim's file, or in a folder."""
    path = (ROOT / file_of(c)).with_suffix(".jsonl")
    return path if folder is None else folder / path.name


def attempts(c: Claim, folder: Path | None = None) -> list[dict[str, Any]]:
    """Every recorded attempt, oldest first."""
    path = attempts_file(c, folder)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def is_stale(c: Claim, folder: Path | None = None) -> bool:
    """Whether the last attempt ran other code than there is now, and nobody has confirmed its numbers with this code since."""
    made = attempts(c, folder)
    if not made:
        return False
    ran = (made[-1]["fingerprint"], made[-1].get("confirmed", {}).get("fingerprint"))
    return fingerprint(file_of(c)) not in ran


def told(c: Claim) -> dict[str, Any]:
    """What the index carries of a claim: words, verdicts and intervals of every attempt, no values of arms."""
    made = [{k: a[k] for k in _TOLD} | {"seeds": len(a["seeds"])} for a in attempts(c)]
    return {
        "id": c.id, "title": c.title, "paper": c.paper, "family": c.family, "level": c.level, "file": file_of(c),
        "says": c.says, "experiment": c.experiment, "stale": is_stale(c), "attempts": made,
        "departures": c.departures,
    }  # fmt: skip


def all_told() -> dict[str, dict[str, Any]]:
    """Every claim by id."""
    return {c.id: told(c) for c in claims()}
