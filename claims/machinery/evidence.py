"""What the recorded attempts at a claim say. A file of attempts stands beside the claim's own: `dpo.py`, `dpo.jsonl`, oldest first.

Lines are only ever added. One with `attempt` is an attempt: margins, seeds, every value of every arm. One with `confirms` says that
an attempt was repeated with later code, on its first seed or on all, and gave the same digits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from claims.machinery.claim import Claim, claims, file_of
from claims.machinery.fingerprint import ROOT, fingerprints
from claims.machinery.spending import apart
from claims.machinery.verdict import compared, reread, values_of

_TOLD = ("attempt", "date", "verdict", "level", "seeds", "checks")  # of an attempt, in the index
Attempt = dict[str, Any]


def attempts_file(c: Claim, folder: Path | None = None) -> Path:
    """Beside the claim's file, or in a folder."""
    path = (ROOT / file_of(c)).with_suffix(".jsonl")
    return path if folder is None else folder / path.name


def curves_file(c: Claim, attempt: int, folder: Path | None = None) -> Path:
    """The curves of an attempt's runs: <family>/curves/<id>-<attempt>.json."""
    path = attempts_file(c, folder)
    return path.parent / "curves" / f"{path.stem}-{attempt}.json"


def lines(c: Claim, folder: Path | None = None) -> list[Attempt]:
    """Everything that was written, oldest first."""
    path = attempts_file(c, folder)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def attempts(c: Claim, folder: Path | None = None) -> list[Attempt]:
    """Every recorded attempt as it was written, oldest first, each with the last line that confirms it."""
    out: dict[int, Attempt] = {}
    for line in lines(c, folder):
        if "attempt" in line:
            out[line["attempt"]] = line
        else:
            out[line["confirms"]] = out[line["confirms"]] | {"confirmed": line}
    return list(out.values())


def judged_attempts(c: Claim, folder: Path | None = None) -> list[Attempt]:
    """Every attempt with its verdict by the rule of the code; what was said when it was made is beside it."""
    return [reread(c, made) for made in attempts(c, folder)]


def is_stale(c: Claim, folder: Path | None = None) -> bool:
    """Whether the last attempt ran other code than there is now, and nobody has confirmed its numbers with this code since."""
    made = attempts(c, folder)
    if not made:
        return False
    ran = (made[-1]["fingerprint"], made[-1].get("confirmed", {}).get("fingerprint"))
    return not set(fingerprints(file_of(c))) & set(ran)


def is_waiting(c: Claim, folder: Path | None = None) -> bool:
    """Whether the claim as it stands has not been run: no attempt has its seeds."""
    return not any(made["seeds"] == list(c.seeds) for made in attempts(c, folder))


def is_earlier(c: Claim, made: Attempt) -> bool:
    """Whether an attempt was at an earlier claim: its seeds are others, or it compared something else or by another margin."""
    return made["seeds"] != list(c.seeds) or asked(c, made) != [x.asked() for x in c.checks]


def asked(c: Claim, made: Attempt) -> list[Any]:
    """What an attempt compared, and its margins; words do not count."""
    values = values_of(made)
    return [compared(c, told, values).asked() for told in made["checks"]]


def told(c: Claim) -> dict[str, Any]:
    """What the index carries of a claim: words, verdicts and intervals of every attempt, no values of arms."""
    made = [
        {k: a[k] for k in _TOLD}
        | {"seeds": len(a["seeds"]), "checks": [x | ({"spent": y} if (y := apart(a, x)) else {}) for x in a["checks"]]}
        | {k: a[k] for k in ("recorded_verdict",) if k in a}
        | ({"earlier": True} if is_earlier(c, a) else {})
        | ran(a)
        for a in judged_attempts(c)
    ]
    return {
        "id": c.id, "title": c.title, "paper": c.paper, "family": c.family, "level": c.level, "file": file_of(c),
        "says": c.says, "experiment": c.experiment, "stale": is_stale(c), "waiting": is_waiting(c), "attempts": made,
        "departures": c.departures,
    }  # fmt: skip


def ran(made: Attempt) -> dict[str, list[str]]:
    """The commits that an attempt was made with, where they were recorded."""
    found = sorted({m["commit"][:7] for m in made.get("machines", []) if m.get("commit")})
    return {"commits": found} if found else {}


def all_told() -> dict[str, dict[str, Any]]:
    """Every claim by id."""
    return {c.id: told(c) for c in claims()}
