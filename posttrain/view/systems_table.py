"""Runs of several systems on several tasks and seeds (`python -m benchmarks.systems`, `benchmarks.agent_systems`) as tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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


RIGHT = {"calls": "accuracy", "search": "right"}  # what a track of agents counts


def agents_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Held-out rows that were right after training, by track and arm: the mean and every seed, greedy and sampled, and what an arm spent."""
    out = ["| track | arm | greedy | sampled | episodes | updates |", "|---" * 6 + "|"]
    for track, system in dict.fromkeys((r["track"], r["system"]) for r in sorted(rows, key=lambda r: r["track"])):
        mine = sorted((r for r in rows if (r["track"], r["system"]) == (track, system)), key=lambda r: r["seed"])
        cells = []
        for how in ("greedy", "sampled"):
            each = [100 * r[how][RIGHT[track]] for r in mine]
            cells.append(f"{statistics.fmean(each):.1f} ({', '.join(f'{x:.0f}' for x in each)})")
        cells += [f"{statistics.fmean(r['spent'].get(k, 0.0) for r in mine):,.0f}" for k in ("samples", "updates")]
        out.append(f"| {track} | {system} | {' | '.join(cells)} |")
    return out
