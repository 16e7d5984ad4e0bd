"""examples:
  posttrain run grpo --task arithmetic
  posttrain run grpo --loss "cispo(high=4)" --terms none --name cispo
  posttrain run grpo --task my.jsonl --model path/to/model --reward "numeric + 0.2*format"
  posttrain run grpo --task prompts.jsonl --reward mine.py:polite    prompts without answers, your own reward
  posttrain run reward-model && posttrain run grpo --reward runs/reward-model-school_pairs    a learned reward
  posttrain run "rlhf-workflow(rounds=2)"        a plan; or --plan.rounds 2
An interrupted run resumes from its last checkpoint when the same command is given again.
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from posttrain.commands.parser import Parser, config_options, given, whole
from posttrain.commands.use import load_parts, use_option
from posttrain.core.config import Config, from_dict
from posttrain.core.errors import UserError

# option -> field of Method, and what it is
PARTS = {
    "loss": ("loss", "the loss that is minimised"),
    "advantage": ("advantage", "how rewards become advantages"),
    "aggregate": ("aggregate", "how token losses are averaged into one number"),
    "terms": ("terms", 'terms added to the loss: "kl(coef=0.1) + entropy", or none'),
    "select": ("select", "which groups of answers to train on, or none to train on all"),
    "shaping": ("shaping", "changes to rewards before advantages are computed, or none"),
    "reference": ("reference", "the reference policy of KL terms and preference losses"),
    "optimiser": ("optimiser", "the optimiser"),
    "curriculum": ("prompts", "which prompts come next (a prompts part: uniform, ...)"),
    "rollout": ("rollout", "how answers are generated"),
}
MANY = ("terms", "select", "shaping")


def options(parser: Parser) -> None:
    parser.add_argument("target", metavar="METHOD", help="a method or plan: see posttrain list --stage method")
    config_options(parser)
    group = parser.add_argument_group('replace parts of the method, by name or "name(parameter=value)"')
    for option, (_, told) in PARTS.items():
        group.add_argument("--" + option.replace("_", "-"), metavar="PART", help=told)
    group.add_argument("--epochs", type=whole, metavar="N", help="passes over the answers of each step")
    group.add_argument("--minibatches", type=whole, metavar="N", help="updates per pass")
    run = parser.add_argument_group("this run")
    run.add_argument("--fresh", action="store_true", help="start over: delete what is in the run's folder")
    run.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs [runs]")
    run.add_argument("--json", action="store_true", help="print the summary as JSON and nothing else")
    run.add_argument("--quiet", action="store_true", help="print no progress, only the result")
    use_option(run)  # type: ignore[arg-type]


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    settings = given(args)
    config: Config = from_dict(Config, settings)
    from posttrain.core.registry import find, parse
    from posttrain.view.live import display

    part = find(parse(args.target)[0], "method", "plan")
    watch = display(quiet=args.quiet, silent=args.json, runs=args.runs)
    try:
        if part.card.stage == "plan":
            summary = run_plan(args, config, watch)
        else:
            summary = run_method(args, config, watch)
    except KeyboardInterrupt:
        watch.close()
        print(f"\nstopped; the same command resumes from the last checkpoint:\n  {again(args.argv)}", file=sys.stderr)
        return 130
    finally:
        watch.close()
    if args.json:
        print(json.dumps(summary))
    return 0


def run_method(args: argparse.Namespace, config: Config, watch: Any) -> dict[str, Any]:
    import dataclasses

    from posttrain.api import run_config
    from posttrain.core.method import find_method
    from posttrain.environments.task import default_task, pair_task
    from posttrain.runs.run import check_name

    if args.plan:
        raise UserError(f"{args.target} is a method, and --plan.{next(iter(args.plan))} is for plans")
    changes = part_changes(args)
    method = find_method(args.target).but(**changes)
    named = config.task if "task" in given(args) else ""
    config = dataclasses.replace(config, task=default_task(config.task, method.rollout.card.data))
    if named and named != config.task:
        pair_task(named)  # says that it holds no pairs: only a task that nobody named is replaced
    name = check_name(config.name) if config.name else run_name(method, list(changes), config)
    config = dataclasses.replace(config, method=args.target, name=name)
    watch.hello(config)
    return run_config(config, args.runs, args.fresh, method, (watch,))


def run_plan(args: argparse.Namespace, config: Config, watch: Any) -> dict[str, Any]:
    from posttrain.api import run_plan as walk
    from posttrain.core.registry import find

    if changes := part_changes(args):
        raise UserError(f"{args.target} is a plan of several methods; --{next(iter(changes))} is for a single method")
    part = find(args.target, "plan")
    part = part.but(**{k: literal(v) for k, v in args.plan.items()})
    watch.hello(config, measured=False)
    summary = walk(part(), config, args.runs, args.fresh, (watch,))
    watch.plan_end(summary, config.name or summary["plan"])
    return summary


def part_changes(args: argparse.Namespace) -> dict[str, Any]:
    """field of Method -> the part named on the command line."""
    from posttrain.core.registry import split_sum

    out: dict[str, Any] = {k: getattr(args, k) for k in ("epochs", "minibatches") if getattr(args, k) is not None}
    for option, (field, _) in PARTS.items():
        text = getattr(args, option)
        if text is None:
            continue
        if field not in MANY:
            out[field] = text
        else:
            out[field] = () if text.strip().lower() in ("none", "") else tuple(split_sum(text))
    return out


def run_name(method: Any, changed: list[str], config: Config) -> str:
    """grpo-arithmetic; grpo-cispo-arithmetic-s1 with another loss and seed: the same command finds the same run."""
    parts = [p.name for field in changed for p in method.parts().get(field, ())]
    file = "." in config.task or Path(config.task).is_dir()
    task = Path(config.task).name.split(".")[0] if file else config.task.replace("/", "-").replace(" + ", "+")
    model = [] if config.model == "pocket" else [Path(config.model).name]
    seed = [f"s{config.seed}"] if config.seed else []
    return "-".join([method.name, *dict.fromkeys(parts), task, *model, *seed])


def literal(text: str) -> Any:
    """A number, True, None or list where the text is one; else the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return text


def again(argv: list[str]) -> str:
    """The command that resumes: the one given, without --fresh."""
    return shlex.join(["posttrain", *(word for word in argv if word != "--fresh")])
