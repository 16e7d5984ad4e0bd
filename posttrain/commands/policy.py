"""`--model M`: the policy that a command works on: a base model or a trained run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from posttrain.commands.parser import Parser
from posttrain.core.config import Config
from posttrain.core.errors import UserError


def policy_options(parser: Parser) -> None:
    group = parser.add_argument_group("which model")
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="pocket, smollm2, a folder, a hub id, or a run: NAME or runs/NAME (its newest checkpoint), runs/NAME@best [pocket]",
    )
    group.add_argument(
        "--phase", metavar="NAME", help="which phase's weights to use, of a run with several phases [the last]"
    )
    group.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs [runs]")
    group.add_argument(
        "--device", default="", metavar="TEXT", help="cuda, cuda:N or cpu [cuda where there is a GPU, else cpu]"
    )
    group.add_argument(
        "--dtype", metavar="TEXT", help="float32 or bfloat16 [the run's; bfloat16 on a GPU, else float32]"
    )


def load(args: argparse.Namespace) -> tuple[Any, Config]:
    """The policy, and the settings it was trained with (defaults where it was not)."""
    from posttrain.runs.build import load_policy
    from posttrain.runs.trained import check_name_of_run, find_trained, load_trained

    which = find_trained(args.model, args.runs, args.phase or "") if args.model else None
    args.run = args.model if which else None
    if which:
        return load_trained(which, load_policy, args.device, args.dtype)
    if args.phase:
        raise UserError("--phase is of a run; name one with --model NAME")
    check_name_of_run(args.model or "", args.runs)
    config = Config(model=args.model or "pocket", device=args.device, dtype=args.dtype or "")
    return load_policy(config), config


def run_folder(name: str, runs: str = "runs") -> Path:
    """The folder of a run by its name under `runs`, or by its path."""
    from posttrain.runs.trained import run_folder as find

    return find(name, runs)


def load_run(folder: Path, phase: str | None = None, device: str = "", dtype: str | None = None) -> tuple[Any, Config]:
    """The policy at the newest checkpoint of a run."""
    from posttrain.runs.build import load_policy
    from posttrain.runs.trained import Trained, load_trained

    return load_trained(Trained(folder, phase=phase or ""), load_policy, device, dtype)
