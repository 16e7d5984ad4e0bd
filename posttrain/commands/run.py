"""examples:
  posttrain run grpo --task arithmetic
  posttrain run grpo --loss "cispo(high=4)" --terms none --name cispo
  posttrain run grpo --task my.jsonl --model path/to/model --reward "numeric + 0.2*format"
  posttrain run grpo --task prompts.jsonl --reward mine.py:polite    prompts without answers, your own reward
  posttrain run grpo --task my.jsonl --tools mine.py --tools.max-turns 4    the model may call functions of yours before it answers
  posttrain run reward-model && posttrain run grpo --reward runs/reward-model-school_pairs    a learned reward
  posttrain run "rlhf-workflow(rounds=2)" --reward task     a plan; or --plan.rounds 2
  posttrain run grpo --model runs/sft-arithmetic --name second      a new run from the weights of another
  posttrain run --config runs/grpo-arithmetic/config.toml --seed 1 --name again
An interrupted run resumes from its last checkpoint when the same command is given again; with more --steps it goes on.
Exit code 0: finished; 75: stopped by SIGTERM or --max-hours, the same command goes on; 130: Ctrl-C; 2: a mistake in the command.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from posttrain.commands.parser import Parser, config_options, given, number, whole
from posttrain.commands.use import load_parts, use_option
from posttrain.core.config import Config, from_dict, to_dict
from posttrain.core.errors import UserError
from posttrain.runs.settings import made_name

PAUSED = 75  # EX_TEMPFAIL of sysexits.h: try again later

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
    parser.add_argument(
        "target", nargs="?", metavar="METHOD", help="a method or plan: see posttrain list --stage method"
    )
    config_options(parser)
    part_options(parser)
    run = parser.add_argument_group("this run")
    run.add_argument(
        "--config", metavar="FILE", help="settings from a TOML file, such as a run's config.toml; options win over it"
    )
    run.add_argument(
        "--from", dest="source", default="", metavar="RUN",
        help="begin with the weights and the optimiser state of a run, at step 0 (--model RUN: its weights alone)",
    )  # fmt: skip
    run.add_argument(
        "--no-optimizer", dest="optimizer", action="store_false", help="with --from: leave the optimiser state behind"
    )
    run.add_argument(
        "--extend-schedule", action="store_true",
        help="with more --steps than before: go on although the learning rate was to fall to 0 at the old end",
    )  # fmt: skip
    run.add_argument(
        "--max-hours",
        type=number,
        metavar="X",
        help="save and exit (75) before the step that would end after this time",
    )
    run.add_argument("--fresh", action="store_true", help="start over: delete what is in the run's folder")
    run.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs [runs]")
    run.add_argument("--json", action="store_true", help="print the summary as JSON and nothing else")
    run.add_argument("--quiet", action="store_true", help="print no progress, only the result")
    run.add_argument(
        "--track",
        default="",
        metavar="NAMES",
        help="mirror the metrics to tensorboard, wandb, mlflow or trackio (several: commas)",
    )
    run.add_argument("--profile", action="store_true", help="trace two steps, for ui.perfetto.dev or chrome://tracing")
    run.add_argument(
        "--gpus", type=whole, metavar="N",
        help="train on N GPUs of this machine, one process each (with --device cpu: N processes); several machines: torchrun",
    )  # fmt: skip
    use_option(run)  # type: ignore[arg-type]


def part_options(parser: Parser) -> None:
    group = parser.add_argument_group('replace parts of the method, by name or "name(parameter=value)"')
    for option, (_, told) in PARTS.items():
        group.add_argument("--" + option.replace("_", "-"), metavar="PART", help=told)
    group.add_argument("--epochs", type=whole, metavar="N", help="passes over the answers of each step")
    group.add_argument("--minibatches", type=whole, metavar="N", help="updates per pass")
    group.add_argument(
        "--rounds",
        type=whole,
        metavar="N",
        help="of new prompts at a step, at most, while --select leaves too few groups",
    )


def main(args: argparse.Namespace) -> int:
    config = prepare(args)
    if args.gpus is not None and "RANK" not in os.environ:
        from posttrain.distributed.launch import launch

        return launch(args.gpus, args.argv, config.device)
    from posttrain.core.pause import Pause, Paused
    from posttrain.view.live import display, tolerant

    pause = Pause(args.max_hours)
    with tolerant(), pause.listening():
        follows = int(os.environ.get("RANK", "0")) > 0  # the first process speaks for all
        watch = display(quiet=args.quiet, silent=args.json or follows, runs=args.runs)
        try:
            summary = run_args(args, config, watch, pause)
        except (KeyboardInterrupt, Paused) as stop:
            watch.close()
            if follows:
                return PAUSED if isinstance(stop, Paused) else 130
            why = f"stopped: {stop}" if isinstance(stop, Paused) else "\nstopped"
            print(f"{why}; the same command resumes from the last checkpoint:\n  {again(args.argv)}", file=sys.stderr)
            return PAUSED if isinstance(stop, Paused) else 130
        finally:
            watch.close()
        if args.json and not follows:
            print(json.dumps(summary))
    return 0


def prepare(args: argparse.Namespace) -> Config:
    """The settings of the command line and of the file that it names; parts of the user's are loaded."""
    if args.config:
        fill(args)
    if not args.target:
        raise UserError("say what to do: posttrain run METHOD, or --config FILE; see posttrain list --stage method")
    if args.source and "model" in vars(args):
        raise UserError(f"--from {args.source} brings its model along; leave --model away")
    load_parts(args.use)
    config: Config = from_dict(Config, given(args))
    return config


def fill(args: argparse.Namespace) -> None:
    """What the file of --config says, wherever the command line says nothing."""
    from posttrain.runs.config_file import read_file

    said, plain = read_file(args.config), to_dict(Config())
    for key, value in said.settings.items():
        inner = value if key == "sampling" else {}
        for name, x in ({f"sampling.{k}": v for k, v in inner.items()} or {key: value}).items():
            if name == "method":
                args.target = args.target or x
            elif x == plain.get(name):
                continue  # a run's file has every setting: one that is as it would be anyway was not asked for
            elif name not in vars(args) and not (name == "model" and args.source):
                setattr(args, name, x)
    for option, value in said.parts.items():
        if getattr(args, option) is None:
            setattr(args, option, value)
    args.plan = {k: str(v) if isinstance(v, str) else repr(v) for k, v in said.plan.items()} | args.plan
    args.use = args.use or said.use
    if said.source and not args.source and "model" not in vars(args):
        args.source, args.optimizer = said.source, args.optimizer and said.optimizer


def run_args(args: argparse.Namespace, config: Config, watch: Any, pause: Any) -> dict[str, Any]:
    """The run that the options ask for; its summary."""
    from posttrain.core.registry import find, parse
    from posttrain.runs.observers import observers
    from posttrain.runs.start import Start

    part = find(parse(args.target)[0], "method", "plan")
    start = Start(args.source, args.optimizer, args.extend_schedule, tuple(args.use), reuse=args.json, pause=pause)
    with observers(args.track, args.profile) as args.observers:
        return (run_plan if part.card.stage == "plan" else run_method)(args, config, watch, start)


def run_method(args: argparse.Namespace, config: Config, watch: Any, start: Any) -> dict[str, Any]:
    import dataclasses

    from posttrain.api import run_config
    from posttrain.core.method import find_method
    from posttrain.environments.task import default_task, pair_task
    from posttrain.runs.settings import check_name
    from posttrain.runs.unused import dotted, refuse_of_method

    if args.plan:
        raise UserError(f"{args.target} is a method, and --plan.{next(iter(args.plan))} is for plans")
    changes = part_changes(args)
    method = find_method(args.target).but(**changes)
    asked = dotted(given(args))
    refuse_of_method(method, asked)
    config = from_dict(Config, method.own(given(args)))
    named = config.task if "task" in given(args) else ""
    config = dataclasses.replace(config, task=default_task(config.task, method.rollout.card.data))
    if named and named != config.task:
        pair_task(
            named, kind=method.rollout.card.data
        )  # says that it holds none: only a task that nobody named is replaced
    config = dataclasses.replace(config, method=args.target, model=start.source or config.model)
    name = check_name(config.name) if config.name else run_name(method, list(changes), config)
    config = dataclasses.replace(config, name=name)
    return run_config(config, args.runs, args.fresh, method, (watch, *args.observers), start=start, asked=asked)


def run_plan(args: argparse.Namespace, config: Config, watch: Any, start: Any) -> dict[str, Any]:
    from posttrain.api import run_plan as walk
    from posttrain.core.registry import find
    from posttrain.runs.plans import Asked
    from posttrain.runs.unused import dotted, refuse_of_plan

    if args.gpus is not None or "RANK" in os.environ:
        raise UserError(
            f"{args.target} is a plan of several phases, which run in one process so far; leave --gpus away"
        )
    if changes := part_changes(args):
        raise UserError(f"{args.target} is a plan of several methods; --{next(iter(changes))} is for a single method")
    part = find(args.target, "plan")
    part = part.but(**options_of(part, args.plan))
    whole, asked = part(), Asked(dotted(given(args)))
    refuse_of_plan(whole, asked.settings or ())
    config = from_dict(Config, whole.own(given(args)))
    summary = walk(whole, config, args.runs, args.fresh, (watch, *args.observers), start, asked)
    watch.plan_end(summary, config.name or summary["plan"])
    return summary


def part_changes(args: argparse.Namespace) -> dict[str, Any]:
    """field of Method -> the part named on the command line."""
    from posttrain.core.method import COUNTS
    from posttrain.core.registry import split_sum

    out: dict[str, Any] = {k: getattr(args, k) for k in COUNTS if getattr(args, k) is not None}
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
    from posttrain.environments.task import looks_like_file

    parts = [p.name for field in changed for p in method.parts().get(field, ())]
    named = config.task.partition("(")[0] if " + " not in config.task else config.task
    file = looks_like_file(named) or named.endswith(".py") or ".py:" in named
    task = Path(named).name.split(".")[0] if file else named.replace("/", "-").replace(" + ", "+")
    model = [] if config.model == "pocket" else [Path(config.model).name]
    seed = [f"s{config.seed}"] if config.seed else []
    return made_name(method.name, *dict.fromkeys(parts), task, *model, *seed)


def options_of(part: Any, typed: dict[str, str]) -> dict[str, Any]:
    """The options of a plan as values: what is a text stays one, also where it could be read as numbers ("52,42,64")."""
    from posttrain.core.typed import parameter_hints

    hints, found = parameter_hints(part.fn), {k: literal(v) for k, v in typed.items()}
    return {k: typed[k] if hints.get(k) is str and not isinstance(v, str) else v for k, v in found.items()}


def literal(text: str) -> Any:
    """A number, True, None or list where the text is one; else the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return text


def again(argv: list[str]) -> str:
    """The command that resumes: the one given, without --fresh."""
    return shlex.join(["posttrain", *(word for word in argv if word != "--fresh")])
