"""Pictures of runs: learning curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from posttrain.core.errors import unknown
from posttrain.evals.pictures import COLOURS, Points, canvas, finish


def learning_curve(
    runs: str | Path | Sequence[str | Path], path: str | Path, metric: str = "reward", smooth: int = 5, title: str = ""
) -> Path:
    """One metric of one or more runs over steps: each value faint, its running mean over `smooth` steps plain."""
    folders = [Path(runs)] if isinstance(runs, (str, Path)) else [Path(r) for r in runs]
    figure, axes = canvas(path)
    for i, folder in enumerate(folders):
        series = [(float(s), v) for s, v in enumerate(read_series(folder, metric)) if math.isfinite(v)]
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(*zip(*series), color=colour, alpha=0.25, linewidth=1)
        axes.plot(*zip(*running_mean(series, smooth)), color=colour, linewidth=2, label=folder.name)
    return finish(figure, axes, Path(path), ("step", metric, title), legend=len(folders) > 1)


def read_series(folder: Path, metric: str) -> list[float]:
    """A metric of a run, phase after phase."""
    from posttrain.runs.run import Run

    with Run.open(folder) as run:
        values = [v for _, v in run.store.series(metric)]
        if not any(math.isfinite(v) for v in values):
            raise unknown("metric", metric, run.store.names())
    return values


def running_mean(series: Points, window: int) -> list[tuple[float, float]]:
    """(x, mean of the last `window` values); at the beginning of as many as there are."""
    out = []
    for i, (x, _) in enumerate(series):
        some = [y for _, y in series[max(0, i + 1 - window) : i + 1]]
        out.append((x, sum(some) / len(some)))
    return out
