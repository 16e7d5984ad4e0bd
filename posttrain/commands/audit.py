"""examples:
  posttrain audit numeric --task arithmetic
  posttrain audit "numeric + 0.2*format" --task my.jsonl
  posttrain audit task --task countdown          the task's own grader
  posttrain audit numeric --save                 keep it for `posttrain view`
Gold answers should score best, corrupted ones less, and answers that solve nothing least. Exit code 1 if not.
Right answers in other words are tried too; those that score less are told, and are no failure.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import TYPE_CHECKING, Any

from posttrain.commands.parser import Parser, number, whole
from posttrain.commands.use import load_parts, use_option
from posttrain.core.errors import UserError

if TYPE_CHECKING:
    from posttrain.core.protocols import Environment


def options(parser: Parser) -> None:
    parser.add_argument("reward", metavar="REWARD", help='a reward by name, or several: "numeric + 0.2*format"')
    parser.add_argument(
        "--task", default="arithmetic", metavar="TASK", help="task whose questions are used [arithmetic]"
    )
    parser.add_argument("--level", type=whole, metavar="N", help="difficulty of a school task")
    parser.add_argument("--data", metavar="DIR", help="folder of data sets, for presets")
    parser.add_argument("--problems", type=whole, default=40, metavar="N", help="number of questions [40]")
    parser.add_argument("--timeout", type=number, default=10.0, metavar="X", help="seconds per call of the reward [10]")
    parser.add_argument("--json", action="store_true", help="print the report as JSON and nothing else")
    parser.add_argument("--save", action="store_true", help="keep the report beside the runs, for posttrain view")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs, for --save [runs]")
    use_option(parser)


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    from posttrain.environments.base import size_of
    from posttrain.environments.task import task
    from posttrain.rewards.auditing.audit import audit

    if args.problems < 1:
        raise UserError(f"--problems is {args.problems}; an audit needs at least 1")
    env = task(args.task, level=args.level, data=args.data)
    size = size_of(env, "train") or args.problems
    prompts = [env.prompt(i, "train") for i in range(min(args.problems, size))]
    report = audit(reward_of(args.reward, env, args.timeout), prompts, env, args.timeout)
    if args.json:
        print(json.dumps(report.to_dict()))
    else:
        show(report, args)
    if args.save:
        from posttrain.runs.sheets import save

        command = shlex.join(["posttrain", "audit", args.reward, *given(args)])
        path = save(args.runs, "audit", f"{args.reward} on {args.task}", args.task, command, report.to_dict())
        print(f"kept in {path}; posttrain view shows it", file=sys.stderr)
    return 0 if report.ok else 1


def reward_of(spec: str, env: Environment, timeout: float) -> Any:
    """One reward as the part it is; a sum, or a scorer of texts, as the scorer."""
    from posttrain.rewards.runtime.scorer import texts_of
    from posttrain.rewards.scorers.spec import build_scorer, named, summands
    from posttrain.runs import saved as saved  # so that a reward may name a run

    found = summands(spec)
    one = named(found[0][1], env)[1] if len(found) == 1 and found[0][0] == 1.0 else None
    if callable(one):
        return one
    scorer = build_scorer(spec, env, timeout) if one is None else one
    texts_of(scorer, [], [])  # one that needs more than a text is refused here, not answer by answer
    return scorer


def show(report: Any, args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from posttrain.core.terminal import printable
    from posttrain.view.figures import short
    from posttrain.view.report import next_steps

    console = Console(highlight=False)
    console.print(f"{args.reward} on {args.task}, answers by family", markup=False)
    table = Table()
    for head in ("family", "kind", "answers", "mean", "lowest", "highest", "verdict"):
        table.add_column(head, justify="left" if head in ("family", "kind", "verdict") else "right")
    colours = {"ok": "green", "exploit": "red", "paid": "red", "failed": "yellow", "missed": "yellow"}
    for r in report.rows:
        figures = [str(r.n), short(r.mean), short(r.min), short(r.max)]
        table.add_row(r.family, r.kind, *figures, Text(r.verdict, style=colours.get(r.verdict, "")))
    console.print(table)
    for sentence in report.sentences:
        console.print(f"- {printable(sentence)}", markup=False)
    next_steps(console, advice(args, report.ok))


def advice(args: argparse.Namespace, ok: bool) -> list[tuple[str, str]]:
    """Commands that work as they are printed, each with what it does."""
    if ok:
        return [(shlex.join(["posttrain", "run", "grpo", *given(args), "--reward", args.reward]), "train with it")]
    from posttrain.core.registry import parse
    from posttrain.rewards.scorers.spec import is_folder, summands

    names = [name for _, name in summands(args.reward) if ".py:" not in name and not is_folder(name)]
    use = [word for file in args.use for word in ("--use", file)]
    shown = {parse(name)[0]: shlex.join(["posttrain", "show", parse(name)[0], *use]) for name in names}
    steps = [(command, f"read the reward {name}") for name, command in shown.items()]
    return [*steps, ("posttrain list --stage reward", "other rewards, to use instead or to add")]


def given(args: argparse.Namespace) -> list[str]:
    """The options that say which questions, as they were typed."""
    known = {"--task": args.task, "--level": args.level, "--data": args.data}
    options = [word for name, value in known.items() if value is not None for word in (name, str(value))]
    return options + [word for file in args.use for word in ("--use", file)]
