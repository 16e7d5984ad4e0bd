"""examples:
posttrain compare grpo rloo --seeds 5
posttrain compare grpo "grpo(loss='cispo')" --task word_problems --steps 40 --picture grpo-cispo.png
posttrain compare grpo topr --task arithmetic --seeds 2 --steps 3 --prompts 4 --eval-problems 20    a quick look
"""

from __future__ import annotations

import argparse
import json

from posttrain.commands.parser import Parser, config_options, given, whole
from posttrain.commands.use import load_parts, use_option
from posttrain.core.config import Config, from_dict
from posttrain.core.errors import UserError

KEPT = ("eval_every", "save_every", "keep_checkpoints", "log_rollouts")  # of a run's folder: a comparison has none


def options(parser: Parser) -> None:
    parser.add_argument("methods", nargs="+", metavar="METHOD", help="two methods or more")
    parser.add_argument(
        "--task", default="word_problems", metavar="TASK", help="a task as in posttrain run [word_problems]"
    )
    parser.add_argument("--seeds", type=whole, default=5, metavar="N", help="runs per method [5]")
    parser.add_argument("--steps", type=whole, default=40, metavar="N", help="steps per run [40]")
    parser.add_argument("--picture", default="", metavar="FILE", help="write a plot: .png or .svg")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    config_options(parser, skip=("method", "task", "steps", "seed", "name", *KEPT))
    use_option(parser)


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    if len(args.methods) < 2:
        raise UserError(f"a comparison needs two methods or more, got {args.methods[0]!r} alone")
    from posttrain.runs.compare import compare

    if args.seeds < 2:
        raise UserError(f"--seeds is {args.seeds}; with fewer than 2 nobody can tell a difference from luck")
    picture = args.picture or None
    settings = {k: v for k, v in given(args).items() if k not in ("task", "steps")}
    config: Config = from_dict(Config, settings)
    made = compare(args.methods, task=args.task, seeds=args.seeds, steps=args.steps, config=config, picture=picture)
    if args.json:
        print(json.dumps(made.to_dict()))
        return 0
    print(made)
    print(f"\nthe picture is in {picture}" if picture else "", end="")
    print(f"\nnext: posttrain show {args.methods[0].partition('(')[0]}")
    return 0
