"""Drawing: a figure without global state, and frontiers such as reward against distance from the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError

Points = Sequence[tuple[float, float]]
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#edae49", "#7353ba", "#6c757d")
FORMATS = (".png", ".svg", ".pdf")


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
