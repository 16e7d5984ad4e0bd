"""examples:
  posttrain runs
  posttrain runs grpo finished            runs with both words in their name, method, task, model or state
  posttrain runs path/to/runs --json
A run is running, finished, stopped (by a signal, a limit or a kill; the command that started it goes on with it) or failed.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
from datetime import datetime
from pathlib import Path

from posttrain.commands.parser import Parser
from posttrain.core.terminal import printable
from posttrain.runs.reading import Summary, all_runs

_STYLES = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red"}
_WIDE = 180  # columns where there is no terminal


def options(parser: Parser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="[DIR] [WORD]", help="folder of runs, and words that a run must have"
    )
    parser.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs [runs]")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON and nothing else")


def main(args: argparse.Namespace) -> int:
    words = list(args.words)
    folder = Path(words.pop(0)) if words and Path(words[0]).is_dir() else Path(args.runs)
    found = [run for run in all_runs(folder) if all(run.has(word) for word in words)]
    if args.json:
        print(json.dumps([run.to_dict() for run in found], indent=1))
    elif not found:
        told = f"no run in {folder}" + (f" has {' and '.join(map(repr, words))}" if words else "")
        print(f"{told}; start one: posttrain run grpo")
    else:
        show(found, folder)
    return 0


def show(found: list[Summary], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from posttrain.view.report import next_steps

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    table = Table(
        "name", "method", "task", "model", "state", "step", "score", "started", "time", box=None, pad_edge=False
    )
    for run in found:
        state = Text(run.state, style=_STYLES.get(run.state, ""))
        cells = [run.name, run.method, run.task, run.model]
        table.add_row(
            *(Text(printable(c, one_line=True)) for c in cells), state, done(run), score(run), when(run), spent(run)
        )
    console.print(table)
    for run in found:
        if run.state in ("stopped", "failed") and run.why:
            console.print(
                Text(printable(f"{run.name} {run.state}: {run.why}", one_line=True), style="dim"), soft_wrap=True
            )
    last = shlex.quote(found[-1].folder)
    steps = [(f"posttrain samples {last} --worst", "read its answers")]
    if len(found) > 1:
        steps.append((f"posttrain compare {shlex.quote(found[-2].folder)} {last}", "settings, scores and curves"))
    next_steps(console, steps)


def done(run: Summary) -> str:
    return f"{run.step}/{run.steps}" if run.steps else f"{run.phase} {run.step}".strip()


def score(run: Summary) -> str:
    """Before -> after: a share in per cent, a reward as the number it is."""
    told = [_number(x, run.score) for x in (run.before, run.after)]
    if run.before is None and run.after is None:
        return ""
    return f"{told[0]} -> {told[1]}" + ("" if run.score == "accuracy" else f" {run.score}")


def _number(x: float | None, name: str) -> str:
    if x is None or not math.isfinite(x):
        return "..."
    return f"{100 * x:.1f}%" if name == "accuracy" else f"{x:.3g}"


def when(run: Summary) -> str:
    return datetime.fromtimestamp(run.started).strftime("%Y-%m-%d %H:%M")


def spent(run: Summary) -> str:
    from posttrain.view.figures import duration

    return duration(run.seconds)
