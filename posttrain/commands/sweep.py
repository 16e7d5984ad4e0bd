"""examples:
  posttrain sweep grpo --grid lr=1e-4,3e-4 --seeds 3 --steps 20
  posttrain sweep grpo --grid "loss=ppo(high=0.28),cispo" --grid prompts=8,16 --task word_problems --jobs 2
  posttrain sweep --config runs/grpo-arithmetic/config.toml --grid sampling.temperature=0.7,1
Every setting of the grid is a run for each seed, in runs/NAME/. Stopped, the same command goes on; what has ended is not done again,
and a larger grid or more seeds only adds runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.commands import run as run_command
from posttrain.commands.parser import Parser, parse, take, whole
from posttrain.commands.run import PAUSED
from posttrain.core.config import Config
from posttrain.core.errors import UserError, unknown
from posttrain.core.pause import Paused
from posttrain.runs.settings import check_name, made_name

Cell = tuple[tuple[str, str], ...]  # (setting, value) of each --grid


@dataclass
class Job:
    """One run of the sweep, the command that does it, and what came out."""

    cell: Cell
    seed: int
    name: str
    argv: list[str]
    summary: dict[str, Any] | None = None
    error: str = ""


def options(parser: Parser) -> None:
    run_command.options(parser)
    group = parser.add_argument_group("the sweep")
    group.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="SETTING=A,B",
        help="values of a setting or part; several are combined",
    )
    group.add_argument("--seeds", type=whole, default=1, metavar="N", help="runs of each, from --seed on [1]")
    group.add_argument("--jobs", type=whole, default=1, metavar="N", help="runs at the same time, each a process [1]")


def main(args: argparse.Namespace) -> int:
    check(args)
    from posttrain.core.pause import Pause
    from posttrain.view.live import tolerant
    from posttrain.view.sweep_table import print_table, progress

    jobs = list(plan_jobs(args))
    for job in jobs:
        arguments(job)  # a value that cannot be read is told before the first run
    folder = Path(args.runs) / sweep_name(args)
    tell = nothing if args.json or args.quiet else say
    with tolerant(), Pause(args.max_hours).listening() as pause:
        tell(f"{len(jobs)} runs in {folder}")
        try:
            for i, job in enumerate(carry_out(jobs, args.jobs, pause), 1):
                tell(f"{i}/{len(jobs)}  {progress(job)}")
        except (KeyboardInterrupt, Paused) as stop:
            why = f"stopped: {stop}" if isinstance(stop, Paused) else "\nstopped"
            print(f"{why}; the same command goes on:\n  {shlex.join(['posttrain', *args.argv])}", file=sys.stderr)
            return PAUSED if isinstance(stop, Paused) else 130
        if args.json:
            print(json.dumps([as_row(job, folder) for job in jobs]))
        else:
            print_table(jobs, str(folder))
    return 1 if any(job.error for job in jobs) else 0


def check(args: argparse.Namespace) -> None:
    """Mistakes, before anything is run."""
    for name in ("seeds", "jobs"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} is {getattr(args, name)}; it must be at least 1")
    if not args.grid:
        raise UserError("say what to vary: --grid lr=1e-5,3e-5")
    if not (args.target or args.config or any(text.startswith("method=") for text in args.grid)):
        raise UserError("say what to train: posttrain sweep METHOD --grid ..., or --grid method=grpo,rloo")
    if args.fresh:
        raise UserError(
            "--fresh would delete every run of the sweep; use another --name, or remove its folder yourself"
        )


def say(line: str) -> None:
    print(line, flush=True)


def nothing(line: str) -> None:
    """For --json and --quiet."""


def as_row(job: Job, folder: Path) -> dict[str, Any]:
    run = str(folder / job.name)
    return {"settings": dict(job.cell), "seed": job.seed, "run": run, "summary": job.summary, "error": job.error}


def sweep_name(args: argparse.Namespace) -> str:
    """The folder of the sweep: --name, or made from what is swept."""
    if name := getattr(args, "name", ""):
        return check_name(name)
    method = (args.target or "").partition("(")[0] or Path(args.config or "").parent.name
    task = Path(getattr(args, "task", "")).name.split(".")[0]
    return made_name("sweep", method, *([task] if task else []), *(g.partition("=")[0] for g in args.grid))


def plan_jobs(args: argparse.Namespace) -> Iterator[Job]:
    """A run for each cell of the grid and each seed, with the command that anybody can give by hand."""
    grid = [axis(text) for text in args.grid]
    names = [name for name, _ in grid]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--grid {twice[0]} is given twice; write its values in one: --grid {twice[0]}=A,B")
    rest = fixed(args.argv[1:], args)
    first = int(getattr(args, "seed", 0))
    used: dict[str, Cell] = {}
    for values in itertools.product(*(values for _, values in grid)):
        cell: Cell = tuple(zip(names, values, strict=True))
        for seed in range(first, first + args.seeds):
            name = made_name(*(f"{key.rpartition('.')[2]}-{value}" for key, value in cell), f"s{seed}")
            if used.setdefault(name, cell) != cell:  # two values that differ in what no file name can hold
                name = made_name(name, str(len(used)))
                used[name] = cell
            yield Job(cell, seed, name, command(args, rest, cell, seed, name))


def axis(text: str) -> tuple[str, list[str]]:
    """`lr=1e-5,3e-5` -> the option and its values; a comma inside parentheses, brackets or quotes is part of a value."""
    key, equals, rest = text.partition("=")
    key = key.strip().replace("_", "-")
    known = [o.removeprefix("--") for o in run_parser().names()]
    if key not in known and not key.startswith(("plan.", "tools.")) and key != "method":
        inner = [k for k in known if k.endswith("." + key)]
        raise unknown("setting to sweep over", key, inner or known)
    from posttrain.core.registry import split_sum

    values = [v for v in split_sum(rest, ",") if v]
    if not equals or not values:
        raise UserError(f"--grid {text}: no values; write it like --grid lr=1e-5,3e-5")
    if len(set(values)) < len(values):
        raise UserError(f"--grid {text}: a value is given twice")
    if key in ("seed", "name", "fresh", "runs", "json", "quiet", "grid", "seeds", "jobs", "config"):
        raise UserError(f"--grid {key}: not a setting to sweep over" + ("; use --seeds 3" if key == "seed" else ""))
    return key, values


def run_parser() -> Parser:
    parser = Parser("posttrain run", "", "")
    run_command.options(parser)
    return parser


def fixed(argv: list[str], args: argparse.Namespace) -> list[str]:
    """The words of the command that every run shares: all but those of the sweep, the seed, the name, the folder and the method."""
    out: list[str] = []
    words = iter(argv)
    for word in words:
        name = word.partition("=")[0].replace("_", "-")
        if name in ("--grid", "--seeds", "--jobs", "--seed", "--name", "--runs", "--max-hours"):
            if "=" not in word:
                next(words, "")
        elif word not in ("--json", "--quiet"):
            out.append(word)
    if args.target in out:
        out.remove(args.target)
    return out


def command(args: argparse.Namespace, rest: list[str], cell: Cell, seed: int, name: str) -> list[str]:
    method = next((value for key, value in cell if key == "method"), args.target)
    varied = [word for key, value in cell if key != "method" for word in (f"--{key}", value)]
    own = ["--seed", str(seed), "--name", name, "--runs", str(Path(args.runs) / sweep_name(args)), "--json"]
    return ["run", *([method] if method else []), *rest, *varied, *own]


def carry_out(jobs: list[Job], workers: int, pause: Any) -> Iterator[Job]:
    """Each job as it ends. One at a time is done in this process; several are processes of their own."""
    if workers == 1:
        yield from (in_process(job, pause) for job in jobs)
        return
    running: set[subprocess.Popen[str]] = set()
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield from pool.map(lambda job: as_process(job, pause, running, workers), jobs)
        except BaseException:
            pause.why = pause.why or "another run was stopped"  # those that have not begun do not begin
            for process in list(running):
                process.terminate()  # each saves what it has, and exits
            raise


def arguments(job: Job) -> tuple[argparse.Namespace, Config]:
    """The options and settings of a run; a mistake in them is an error."""
    from posttrain.core.method import find_method
    from posttrain.core.registry import find
    from posttrain.core.registry import parse as parse_call

    taken, words = take(job.argv[1:], "--plan.")
    args = parse(run_parser(), words)
    args.argv, args.plan = job.argv, taken
    config = run_command.prepare(args)
    if find(parse_call(args.target)[0], "method", "plan").card.stage == "method":
        find_method(args.target).but(**run_command.part_changes(args))
    return args, config


def in_process(job: Job, pause: Any) -> Job:
    from posttrain.view.live import display

    if pause.why:
        raise Paused(pause.why)
    try:
        args, config = arguments(job)
        job.summary = run_command.run_args(args, config, display(silent=True, runs=args.runs), pause)
    except UserError as error:
        job.error = str(error)
    return job


def as_process(job: Job, pause: Any, running: set[subprocess.Popen[str]], workers: int) -> Job:
    if pause.why:
        raise Paused(pause.why)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    env = {"OMP_NUM_THREADS": str(max(1, cores // workers))} | dict(os.environ)
    limit = [] if pause.hours is None else ["--max-hours", str(max(pause.left(), 1e-9))]
    argv = [sys.executable, "-m", "posttrain", *job.argv, *limit]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    running.add(process)
    out, err = process.communicate()
    running.discard(process)
    if process.returncode == PAUSED:
        raise Paused(pause.why or "a run was stopped")
    if process.returncode == 0:
        job.summary = json.loads(out.strip().splitlines()[-1])
    else:
        last = (err.strip().splitlines() or [f"it ended with {process.returncode}"])[-1]
        job.error = last.removeprefix("error: ")
    return job
