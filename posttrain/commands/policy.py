"""`--model M`: the policy that a command works on: a base model or a trained run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from posttrain.commands.parser import Parser, number, whole
from posttrain.core.config import Config
from posttrain.core.errors import UserError


def policy_options(parser: Parser) -> None:
    group = parser.add_argument_group("which model")
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="pocket, pocket-2, smollm2, a folder (an adapter's too), a hub id, or a run: NAME or runs/NAME (its newest checkpoint), "
        "runs/NAME@best [pocket]",
    )
    group.add_argument("--adapter", default="", metavar="DIR", help="folder of a PEFT adapter of the model")
    group.add_argument(
        "--phase", metavar="NAME", help="which phase's weights to use, of a run with several phases [the last]"
    )
    group.add_argument(
        "--prefer", default="", metavar="TEXT",
        help="what is wanted of a policy that was trained to be told: a class, or a direction such as \"helpful=0.8,verbose=-0.6\" [the best class]",
    )  # fmt: skip
    group.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs [runs]")
    group.add_argument(
        "--device", default="", metavar="TEXT", help="cuda, cuda:N or cpu [cuda where there is a GPU, else cpu]"
    )
    group.add_argument(
        "--dtype", metavar="TEXT", help="float32 or bfloat16 [the run's; bfloat16 on a GPU, else float32]"
    )


def url_options(parser: Parser) -> None:
    group = parser.add_argument_group("a model behind an OpenAI-compatible API")
    group.add_argument(
        "--url", metavar="URL", help="its address, like http://127.0.0.1:8000/v1; --model is its name there"
    )
    group.add_argument("--api-key-env", default="", metavar="NAME", help="environment variable that holds the API key")
    group.add_argument("--concurrency", type=whole, default=8, metavar="N", help="requests at the same time [8]")
    group.add_argument(
        "--rate", type=number, default=0.0, metavar="X", help="most requests per second; 0: no limit [0]"
    )


def load_any(args: argparse.Namespace) -> tuple[Any, Config]:
    """A model here, or with --url one behind an API."""
    if args.url is None:
        for name in ("api_key_env", "rate"):
            if getattr(args, name):
                raise UserError(f"--{name.replace('_', '-')} is of a model behind an API; give its address with --url")
        return load(args)
    for name in ("phase", "dtype", "device", "adapter", "prefer"):
        if getattr(args, name):
            raise UserError(f"--{name} is of a model that runs here; leave it away with --url")
    from posttrain.policies.chat_api import ChatAPI
    from posttrain.policies.remote import RemoteModel

    api = ChatAPI(args.url, args.model or "", args.api_key_env, args.concurrency, args.rate)
    if args.model:
        api.check_model()
    args.run, name = None, args.model or api.choose_model()
    return RemoteModel(api), Config(model=name)


def load(args: argparse.Namespace) -> tuple[Any, Config]:
    """The policy, and the settings it was trained with (defaults where it was not)."""
    from posttrain.runs.build import load_policy
    from posttrain.runs.trained import check_name_of_run, find_trained, load_trained, prefer

    name = "pocket" if args.model is None else args.model
    which = find_trained(name, args.runs, args.phase or "")
    args.run = args.model if which else None
    if which and args.adapter:
        raise UserError(f"{args.run} is a run, which has its own adapters; --adapter is of a model")
    if which:
        policy, config = load_trained(which, load_policy, args.device, args.dtype)
        return prefer(which, policy, args.prefer), config
    if args.prefer:
        raise UserError(
            f"{name} is a model that was not trained to be told what is wanted; --prefer is of a run that was"
        )
    if args.phase:
        raise UserError("--phase is of a run; name one with --model NAME")
    check_name_of_run(name, args.runs)
    config = Config(model=name, device=args.device, dtype=args.dtype or "", adapter=args.adapter)
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


def reward_model_folder(name: str, runs: str) -> Path | None:
    """The folder of a reward model (of a run with @checkpoint, where one is named), if the name is one's: a run that trained nothing
    else, or a sequence classifier."""
    from posttrain.runs.checkpoint import listing
    from posttrain.runs.run import Run
    from posttrain.runs.trained import answering_role, find_trained

    if which := find_trained(name, runs):
        with Run.open(which.folder) as run:
            trained = [phase for phase in run.store.phases() if listing(run.checkpoints, phase)]
            return Path(str(which)) if trained and not any(answering_role(run, phase) for phase in trained) else None
    try:
        kinds = json.loads((Path(name) / "config.json").read_text()).get("architectures") or []
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return Path(name) if any(str(kind).endswith("ForSequenceClassification") for kind in kinds) else None
