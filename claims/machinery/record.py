"""`posttrain check`: run claims and record what came out, shown or not."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from claims.machinery.claim import Claim, claims, file_of, find_claim
from claims.machinery.evidence import RESULTS, read_record
from claims.machinery.experiment import Result, experiment
from claims.machinery.fingerprint import fingerprint, ground
from posttrain.core.errors import UserError

Tell = Callable[[str], None]


def check(
    ids: Sequence[str] = (), family: str | None = None, write: bool = True, folder: Path = RESULTS,
    tell: Tell | None = None, outdated: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """Run the claims of these ids (or of a family, or all) and write one result file each; returns the records.

    outdated: only those without a result of the code as it is, ideas and ground.
    """
    if ids and family:
        raise UserError(f"give claim ids or a family, not both: got {', '.join(ids)} and {family!r}")
    chosen: list[Claim] = [find_claim(id) for id in ids] if ids else claims(family)
    if outdated:
        chosen = [c for c in chosen if is_outdated(c)]
    records = []
    for c in chosen:
        before = (fingerprint(file_of(c)), ground(file_of(c)))
        made = record(c, experiment(c, tell=tell), *before)
        if write:
            write_record(made, folder)
        records.append(made)
    return records


def is_outdated(c: Claim) -> bool:
    """No result, or one of other code."""
    made = read_record(c.id) or {}
    return (made.get("fingerprint"), made.get("ground")) != (fingerprint(file_of(c)), ground(file_of(c)))


def record(c: Claim, result: Result, mark: str, under: str = "") -> dict[str, Any]:
    """Plain values: what `claims/results/<id>.json` holds."""
    return {
        "id": c.id,
        "title": c.title,
        "paper": c.paper,
        "family": c.family,
        "file": file_of(c),
        "verdict": "shown" if result.shown else "not shown",
        "says": c.says,
        "experiment": c.experiment,
        "checks": [_rounded(asdict(f)) for f in result.findings],
        "arms": {arm: {m: _summary(xs) for m, xs in metrics.items()} for arm, metrics in result.values.items()},
        "seeds": result.seeds,
        "seconds": round(result.seconds, 1),
        "fingerprint": mark,
        "ground": under,
        "versions": _versions(),
        "tried": c.tried,
    }


def write_record(made: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Written to a temporary name and renamed, so that a reader never sees half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{made['id']}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    os.replace(part, path)
    return path


def table(made: dict[str, Any]) -> str:
    """A record for people: each check with its difference, interval and margin."""
    lines = [f"{made['id']}: {made['verdict']} ({len(made['seeds'])} seeds, {made['seconds']:.0f} s)"]
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
