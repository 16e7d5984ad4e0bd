"""The tables of `posttrain eval`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posttrain.core.terminal import printable
from posttrain.view.figures import percent, short

MOST = 40  # rows of a table by column; the JSON has all of them


def answer_tables(console: Console, found: dict[str, Any], name: str, told: str) -> None:
    """Score, pass@k, maj@k, lengths; then by column."""
    shown = percent if name == "accuracy" else short
    title = f"{found['model']} on {found['task']}: {found['problems']} problems, {found['n']} answers each"
    console.print(printable(title, one_line=True), style="bold", markup=False)
    table = Table("", "mean", "95% interval")
    table.add_row(name, shown(found[name]), span(found["interval"], shown))
    for kind, word in (("pass_at_k", "pass"), ("maj_at_k", "maj")):
        for k, row in found[kind].items() if found["n"] > 1 else ():
            table.add_row(f"{word}@{k}", percent(row["mean"]), span(row["interval"], percent))
    table.add_row("tokens per answer", f"{found['tokens_per_answer']:.1f}", "")
    table.add_row("finished answers", percent(found["ended"]), "")
    for word, value in turn_rows(found):
        table.add_row(Text(printable(word, one_line=True)), Text(printable(value, one_line=True)), "")
    console.print(table)
    console.print(f"interval: {found['interval_by']}", style="dim")
    if told:
        console.print(printable(told, one_line=True), style="yellow", markup=False)
    if "rows" in found:
        cells = [(r["value"], r["problems"], shown(r["mean"]), span(r["interval"], shown)) for r in found["rows"]]
        by_table(console, (found["by"], "problems", name, "95% interval"), cells)


def turn_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Of episodes: turns, calls, why they stopped, what the environment measures."""
    rows = [
        (name.replace("_", " "), f"{found[name]:.2f}")
        for name in ("turns_per_episode", "calls_per_episode", "faults_per_episode")
        if name in found
    ]
    rows += [(f"stopped: {why}", f"{n}") for why, n in found.get("stops", {}).items()]
    return rows + [(f"metric: {name}", short(x)) for name, x in found.get("metrics", {}).items()]


def pair_tables(console: Console, found: dict[str, Any]) -> None:
    """Accuracy, margin and calibration on pairs; then by column."""
    title = f"{found['model']} on {found['task']}: {found['pairs']} pairs, scored by {found['scored_by']}"
    console.print(printable(title, one_line=True), style="bold", markup=False)
    table = Table("", "mean", "95% interval")
    table.add_row("accuracy", percent(found["accuracy"]), span(found["interval"], percent))
    table.add_row("margin", short(found["margin"]), span(found["margin_interval"], short))
    if "calibration_error" in found:
        table.add_row("calibration error", percent(found["calibration_error"]), "")
    console.print(table)
    if found["failed"]:
        console.print(f"{found['failed']} pairs have a score that is not finite: left out", style="yellow")
    if found.get("calibration"):
        cells = [
            (
                f"{percent(b['low'])} to {percent(b['high'])}",
                b["count"],
                percent(b["confidence"]),
                percent(b["accuracy"]),
            )
            for b in found["calibration"]
        ]
        by_table(console, ("it says", "pairs", "on average", "and is right"), cells)
    if "rows" in found:
        rows = [
            (r["value"], r["pairs"], percent(r["accuracy"]), span(r["interval"], percent), short(r["margin"]))
            for r in found["rows"]
        ]
        by_table(console, (found["by"], "pairs", "accuracy", "95% interval", "margin"), rows)


def by_table(console: Console, head: Sequence[str], cells: Sequence[Sequence[Any]]) -> None:
    table = Table()
    for name in head:  # data may hold what rich or a terminal would obey
        table.add_column(Text(printable(name, one_line=True)))
    for row in cells[:MOST]:
        table.add_row(*(Text(printable(x, one_line=True)[:60]) for x in row))
    console.print(table)
    if len(cells) > MOST:
        console.print(f"and {len(cells) - MOST} more; --json has all of them", style="dim")


def span(ends: Sequence[float], shown: Any) -> str:
    return f"{shown(ends[0])} to {shown(ends[1])}" if all(map(math.isfinite, ends)) else "-"
