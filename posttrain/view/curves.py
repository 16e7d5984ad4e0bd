"""Pictures: learning curves of runs, and frontiers such as reward against distance from the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError, unknown

Points = Sequence[tuple[float, float]]
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#7353ba", "#6c757d")
FORMATS = (".png", ".svg", ".pdf")


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


def frontier(
    series: Mapping[str, Points], xlabel: str, ylabel: str, title: str, path: str | Path
) -> Path:  # fmt: skip
    """Named point series joined in the order of x: gold and proxy reward against KL, accuracy against tokens."""
    if not any(series.values()):
        raise UserError("a picture needs at least one point, got none")
    figure, axes = canvas(path)
    for i, (name, points) in enumerate(series.items()):
        kept = sorted((x, y) for x, y in points if math.isfinite(x) and math.isfinite(y))
        if kept:
            axes.plot(*zip(*kept), color=COLOURS[i % len(COLOURS)], marker="o", markersize=4, linewidth=1.8, label=name)
    return finish(figure, axes, Path(path), (xlabel, ylabel, title), legend=len(series) > 1)


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


def canvas(path: str | Path) -> tuple[Any, Any]:
    """A figure without pyplot's global state, so that pictures can be made anywhere."""
    if Path(path).suffix not in FORMATS:
        raise UserError(f"cannot draw {path}; let its name end in {', '.join(FORMATS)}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def finish(figure: Any, axes: Any, path: Path, words: tuple[str, str, str], legend: bool) -> Path:
    xlabel, ylabel, title = words
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left", fontsize=11)
    if legend:
        axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
