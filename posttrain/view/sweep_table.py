"""The table at the end of a sweep: a row for each setting of the grid, means and intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posttrain.core.terminal import printable
from posttrain.evals.intervals import interval
from posttrain.view.figures import duration, mean, percent, short
from posttrain.view.report import next_steps

_WIDE = 160  # columns where there is no terminal


def progress(job: Any) -> str:
    """One line for a run that has ended."""
    what = printable(", ".join(f"{key}={value}" for key, value in job.cell), one_line=True)
    if job.summary is None:
        return f"{what}, seed {job.seed}: failed: {printable(job.error, one_line=True)}"
    name = score_name([job])
    before, after = (job.summary.get(f"{name}_{when}") for when in ("before", "after"))
    seconds = duration(job.summary.get("seconds") or 0.0)
    return f"{what}, seed {job.seed}: {name} {figure(before, name)} -> {figure(after, name)}, {seconds}"


def print_table(jobs: Sequence[Any], folder: str) -> None:
    """Rows in the order of the grid; the best mean is marked."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    cells = list(dict.fromkeys(job.cell for job in jobs))
    name = score_name(jobs)
    rows = [row(cell, [job for job in jobs if job.cell == cell], name) for cell in cells]
    best = max((r["mean"] for r in rows if math.isfinite(r["mean"])), default=math.nan)
    heads = [key for key, _ in cells[0]]
    table = Table(*heads, "runs", "before", f"{name or 'score'} after", "95% over seeds", "", box=None, pad_edge=False)
    for r in rows:
        mark = "best" if r["mean"] == best and len(rows) > 1 else ""
        told = (f"{r['ended']}/{r['runs']}", figure(r["before"], name), figure(r["mean"], name), r["interval"], mark)
        table.add_row(*(Text(printable(x, one_line=True)) for x in (*r["values"], *told)))
    console.print(table)
    if all(r["runs"] == 1 for r in rows):
        console.print(Text("one seed each: differences may be luck; --seeds 3 adds two more of each", style="dim"))
    for job in jobs:
        if job.error:
            what = ", ".join(f"{key}={value}" for key, value in job.cell)
            console.print(
                Text(printable(f"failed: {what}, seed {job.seed}: {job.error}", one_line=True), style="red"),
                soft_wrap=True,
            )
    next_steps(console, [(f"posttrain runs {folder}", "every run of the sweep")])


def row(cell: Any, jobs: Sequence[Any], name: str) -> dict[str, Any]:
    """Means over the seeds of one setting."""
    ended = [job.summary for job in jobs if job.summary is not None]
    after = [float(x) for s in ended if (x := s.get(f"{name}_after")) is not None]
    low, high = interval(after) if len(after) > 1 else (math.nan, math.nan)
    return {
        "values": [value for _, value in cell],
        "runs": len(jobs),
        "ended": len(ended),
        "before": mean([float(x) for s in ended if (x := s.get(f"{name}_before")) is not None]),
        "mean": mean(after),
        "interval": f"{figure(low, name)} to {figure(high, name)}" if math.isfinite(low) else "",
    }


def score_name(jobs: Sequence[Any]) -> str:
    """What the runs were measured by: accuracy, reward."""
    keys = (
        key for job in jobs for key in job.summary or {} if key.endswith("_after") and not key.startswith("ungraded")
    )
    return next(keys, "").removesuffix("_after")


def figure(x: float | None, name: str) -> str:
    if x is None or not math.isfinite(x):
        return "-"
    return percent(x) if name == "accuracy" else short(x)
