"""examples:
posttrain compare grpo rloo --seeds 5
posttrain compare grpo "grpo(loss='cispo')" --task word_problems --steps 40 --picture grpo-cispo.png
posttrain compare grpo topr --task arithmetic --seeds 2 --steps 3 --prompts 4 --eval-problems 20    a quick look
posttrain compare runs/grpo-arithmetic runs/rloo-arithmetic    runs that exist: nothing is trained
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from posttrain.commands.parser import Parser, config_options, given, whole
from posttrain.commands.use import load_parts, use_option
from posttrain.core.config import ELSEWHERE, Config, from_dict
from posttrain.core.errors import UserError
from posttrain.core.terminal import printable
from posttrain.runs.settings import is_run

TASK, SEEDS, STEPS = "word_problems", 5, 40
KEPT = (
    "eval_every",
    "save_every",
    "keep_checkpoints",
    "keep_best",
    "log_rollouts",
    "store_gb",
)  # of a run's folder: a comparison has none


def options(parser: Parser) -> None:
    parser.add_argument(
        "methods", nargs="+", metavar="METHOD", help="two methods or more; or two runs, by their folders"
    )
    parser.add_argument("--task", metavar="TASK", help="a task as in posttrain run [word_problems]")
    parser.add_argument("--seeds", type=whole, metavar="N", help="runs per method [5]")
    parser.add_argument("--steps", type=whole, metavar="N", help="steps per run [40]")
    parser.add_argument("--picture", default="", metavar="FILE", help="write a plot: .png or .svg")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    config_options(parser, skip=("method", "task", "steps", "seed", "name", *KEPT, *ELSEWHERE))
    use_option(parser)


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    if any(is_run(Path(name)) for name in args.methods):
        return compare_existing(args)
    if len(args.methods) < 2:
        raise UserError(f"a comparison needs two methods or more, got {args.methods[0]!r} alone")
    from posttrain.runs.compare import compare

    task, steps, seeds = args.task or TASK, STEPS if args.steps is None else args.steps, args.seeds
    seeds = SEEDS if seeds is None else seeds
    if seeds < 2:
        raise UserError(f"--seeds is {seeds}; with fewer than 2 nobody can tell a difference from luck")
    picture = args.picture or None
    settings = {k: v for k, v in given(args).items() if k not in ("task", "steps")}
    config: Config = from_dict(Config, settings)
    made = compare(args.methods, task=task, seeds=seeds, steps=steps, config=config, picture=picture)
    if args.json:
        print(json.dumps(made.to_dict()))
        return 0
    print(made)
    print(f"\nplot written to {picture}" if picture else "", end="")
    print(f"\nnext: posttrain show {args.methods[0].partition('(')[0]}")
    return 0


# ---- runs that exist


def compare_existing(args: argparse.Namespace) -> int:
    """Settings that differ, scores with intervals, curves; options that are for training are an error."""
    others = [name for name in args.methods if not is_run(Path(name))]
    if others:
        raise UserError(
            f"{others[0]} is not the folder of a run, and the others are; compare runs with runs, or methods"
        )
    if extra := [k for k, v in (given(args) | {"seeds": args.seeds}).items() if v is not None]:
        raise UserError(f"runs that exist are compared as they are; leave --{extra[0].replace('_', '-')} away")
    from posttrain.runs.compare_runs import compare_runs

    folders = [Path(name) for name in args.methods]
    made = compare_runs(folders)
    if args.picture:
        from posttrain.view.curves import learning_curve

        learning_curve(folders, args.picture, made.curve)
    if args.json:
        print(json.dumps(made.to_dict()))
        return 0
    show(made)
    print(f"plot written to {args.picture}\n" if args.picture else "", end="")
    print(f"next: posttrain samples {args.methods[-1]} --worst")
    return 0


def show(made: Any) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from posttrain.view.figures import duration, sparkline

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    heads = [printable(arm.name, one_line=True) for arm in made.arms]
    table = Table("", *heads, box=None, pad_edge=False)
    rows = [(name, values) for name, values in made.settings]
    rows += [
        ("", [""] * len(heads)),
        ("state", [f"{a.state}, {a.steps} steps in {duration(a.seconds)}" for a in made.arms]),
    ]
    rows.append((f"{made.arms[0].score or 'score'} before", [number(a.before, a.score) for a in made.arms]))
    rows.append(("after", [number(a.after, a.score) for a in made.arms]))
    rows.append(("95% interval", [f"{number(a.low, a.score)} to {number(a.high, a.score)}" for a in made.arms]))
    if made.same_problems:
        ahead = [
            f"{number(a.ahead, a.score, '+')} [{number(a.ahead_low, a.score, '+')}, {number(a.ahead_high, a.score, '+')}]"
            for a in made.arms[1:]
        ]
        rows.append((f"ahead of {made.arms[0].name}", ["", *ahead]))
    rows.append((made.curve, [sparkline(a.curve, 30) for a in made.arms]))
    for name, values in rows:
        table.add_row(*(Text(printable(x, one_line=True)) for x in (name, *values)))
    console.print(table)
    told = "intervals are over held-out problems: one run of each does not say what another seed would give"
    if not made.same_problems:
        told = "the runs were not measured on the same held-out problems, so their scores are not paired; " + told
    console.print(Text(told, style="dim"), soft_wrap=True)


def number(x: float, name: str, sign: str = "") -> str:
    if not math.isfinite(x):
        return "-"
    return f"{100 * x:{sign}.1f}%" if name == "accuracy" else f"{x:{sign}.3g}"
