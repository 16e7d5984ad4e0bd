"""`posttrain check`: run claims and record what came out, shown or not."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from claims.machinery.claim import Claim, claims, file_of, find_claim
from claims.machinery.evidence import attempts, attempts_file
from claims.machinery.experiment import Result, experiment
from claims.machinery.fingerprint import fingerprint, ground
from posttrain.core.errors import UserError

Tell = Callable[[str], None]
LIMIT = 200_000  # bytes of a claim's file of attempts


def check(
    ids: Sequence[str] = (), family: str | None = None, write: bool = True, folder: Path | None = None,
    tell: Tell | None = None, outdated: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """Run the claims of these ids (or of a family, or all) and record each; returns the records.

    outdated: only those without a result of the code as it is, ideas and ground. folder: record there, not beside the claims.
    """
    if ids and family:
        raise UserError(f"give claim ids or a family, not both: got {', '.join(ids)} and {family!r}")
    chosen: list[Claim] = [find_claim(id) for id in ids] if ids else claims(family)
    if outdated:
        chosen = [c for c in chosen if is_outdated(c, folder)]
    records = []
    for c in chosen:
        before = (fingerprint(file_of(c)), ground(file_of(c)))
        made = record(c, experiment(c, tell=tell), *before)
        records.append({"id": c.id} | (write_record(c, made, folder) if write else made))
    return records


def is_outdated(c: Claim, folder: Path | None = None) -> bool:
    """No result, or one of other code."""
    made = (attempts(c, folder) or [{}])[-1]
    return (made.get("fingerprint"), made.get("ground")) != (fingerprint(file_of(c)), ground(file_of(c)))


def record(c: Claim, result: Result, mark: str, under: str = "") -> dict[str, Any]:
    """Plain values: what an attempt is told by, besides its number and date."""
    return {
        "verdict": "shown" if result.shown else "not shown",
        "level": c.level,
        "checks": [_rounded(asdict(f)) for f in result.findings],
        "arms": {arm: {m: _summary(xs) for m, xs in metrics.items()} for arm, metrics in result.values.items()},
        "seeds": result.seeds,
        "seconds": round(result.seconds, 1),
        "fingerprint": mark,
        "ground": under,
        "versions": _versions(),
        "tried": c.tried,
    }


def write_record(c: Claim, made: dict[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Add an attempt; returns it with its number and date.

    Attempts are append-only. A run whose numbers equal those of the last attempt is that attempt again: its line keeps number
    and date, while fingerprint, ground, versions, seconds and words are made those of the new run. Written to a temporary name and
    renamed, so that a reader never sees half of it.
    """
    before, path = attempts(c, folder), attempts_file(c, folder)
    new = {"attempt": len(before) + 1, "date": date.today().isoformat()} | made
    if before and numbers(before[-1]) == numbers(made):
        new |= {k: before[-1][k] for k in ("attempt", "date")}
        before.pop()
    text = "".join(json.dumps(a, ensure_ascii=False) + "\n" for a in [*before, new])
    if len(text.encode()) > LIMIT:
        raise UserError(
            f"{path.name} would hold {len(text.encode()):,} bytes, more than {LIMIT:,}; record fewer values"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text)
    os.replace(part, path)
    return new


def numbers(made: dict[str, Any]) -> list[Any]:
    """What makes an attempt another one: findings and margins, and every value of every arm. Names and words do not."""
    found = [[c[k] for k in ("difference", "low", "high", "margin", "shown")] for c in made["checks"]]
    return [found, [[x["values"] for x in metrics.values()] for metrics in made["arms"].values()]]


def table(made: dict[str, Any]) -> str:
    """A record for people: each check with its difference, interval and margin."""
    which = f"attempt {made['attempt']}, " if "attempt" in made else ""
    lines = [f"{made['id']}: {made['verdict']} ({which}{len(made['seeds'])} seeds, {made['seconds']:.0f} s)"]
    for c in made["checks"]:
        mark = "+" if c["shown"] else "-"
        numbers = f"{c['difference']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}]"
        lines.append(f"  {mark} {c['name']}: {c['metric']} {numbers}, margin {c['margin']:+g}")
    return "\n".join(lines)


def _summary(xs: list[float]) -> dict[str, Any]:
    spread = statistics.stdev(xs) if len(xs) > 1 else 0.0
    return {"mean": _short(statistics.fmean(xs)), "std": _short(spread), "values": [_short(x) for x in xs]}


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {k: _short(v) if isinstance(v, float) else v for k, v in values.items()}


def _short(x: float) -> float:
    return float(f"{x:.6g}")


def _versions() -> dict[str, str]:
    import platform

    import torch

    import posttrain

    return {"posttrain": posttrain.__version__, "python": platform.python_version(), "torch": torch.__version__}
