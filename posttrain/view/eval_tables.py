"""The tables of `posttrain eval`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from posttrain.view.figures import percent, short

MOST = 40  # rows of a table by column; the JSON has all of them


def answer_tables(console: Console, found: dict[str, Any], name: str, told: str) -> None:
    """Score, pass@k, maj@k, lengths; then by column."""
    shown = percent if name == "accuracy" else short
    title = f"{found['model']} on {found['task']}: {found['problems']} problems, {found['n']} answers each"
    console.print(title, style="bold", markup=False)
    table = Table("", "mean", "95% interval")
    table.add_row(name, shown(found[name]), span(found["interval"], shown))
    for kind, word in (("pass_at_k", "pass"), ("maj_at_k", "maj")):
        for k, row in found[kind].items() if found["n"] > 1 else ():
            table.add_row(f"{word}@{k}", percent(row["mean"]), span(row["interval"], percent))
    table.add_row("tokens per answer", f"{found['tokens_per_answer']:.1f}", "")
    table.add_row("finished answers", percent(found["ended"]), "")
    console.print(table)
    console.print(f"interval: {found['interval_by']}", style="dim")
    if told:
        console.print(told, style="yellow", markup=False)
    if "rows" in found:
        cells = [(r["value"], r["problems"], shown(r["mean"]), span(r["interval"], shown)) for r in found["rows"]]
        by_table(console, (found["by"], "problems", name, "95% interval"), cells)


def pair_tables(console: Console, found: dict[str, Any]) -> None:
    """Accuracy, margin and calibration on pairs; then by column."""
    title = f"{found['model']} on {found['task']}: {found['pairs']} pairs, scored by {found['scored_by']}"
    console.print(title, style="bold", markup=False)
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
    table = Table(*head)
    for row in cells[:MOST]:
        table.add_row(*(str(x)[:60] for x in row))
    console.print(table)
    if len(cells) > MOST:
        console.print(f"and {len(cells) - MOST} more; --json has all of them", style="dim")


def span(ends: Sequence[float], shown: Any) -> str:
    return f"{shown(ends[0])} to {shown(ends[1])}" if all(map(math.isfinite, ends)) else "-"
