"""Runs of several systems on several tasks and seeds (`python -m benchmarks.systems`) as a table."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

SPENT = ("samples", "tokens", "updates")


def systems_table(rows: list[dict[str, Any]]) -> list[str]:
    """Held-out accuracy after training by system and task, the best mean over tasks first: its mean and every seed, and what a run spent."""
    tasks = list(dict.fromkeys(Path(r["task"]).name for r in rows))
    after = {(r["system"], Path(r["task"]).name, r["seed"]): 100 * r["accuracy_after"] for r in rows}
    before = {t: [100 * r["accuracy_before"] for r in rows if Path(r["task"]).name == t] for t in tasks}
    heads = [f"{t} ({statistics.fmean(before[t]):.1f} before)" for t in tasks]
    out = [f"| system | {' | '.join(heads)} | answers | tokens | updates |", "|---" * (len(tasks) + 4) + "|"]
    found = {
        s: {t: [x for (a, b, _), x in sorted(after.items()) if (a, b) == (s, t)] for t in tasks} for s, _, _ in after
    }
    for system in sorted(found, key=lambda s: -sum(statistics.fmean(x) for x in found[s].values() if x)):
        cells = [
            f"{statistics.fmean(x):.1f} ({', '.join(f'{y:.0f}' for y in x)})" if x else ""
            for x in found[system].values()
        ]
        mine = [r["spent"] for r in rows if r["system"] == system]
        cells += [f"{statistics.fmean(spent.get(k, 0.0) for spent in mine):,.0f}" for k in SPENT]
        out.append(f"| {system} | {' | '.join(cells)} |")
    return out
