"""`--model M`: the policy that a command works on: a base model or a trained run."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from posttrain.commands.parser import Parser, number, whole
from posttrain.core.config import Config, from_dict
from posttrain.core.errors import UserError, nearest, unknown


def policy_options(parser: Parser) -> None:
    group = parser.add_argument_group("which model")
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="pocket, smollm2, a folder (an adapter's too), a hub id, or a run (its newest checkpoint) [pocket]",
    )
    group.add_argument("--adapter", default="", metavar="DIR", help="folder of a PEFT adapter of the model")
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
    for name in ("phase", "dtype", "device", "adapter"):
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
    args.run = args.model if args.model and is_run(args.model, args.runs) else None
    if args.run and args.adapter:
        raise UserError(f"{args.run} is a run, which has its own adapters; --adapter is of a model")
    if args.run:
        return load_run(run_folder(args.run, args.runs), args.phase, args.device, args.dtype)
    if args.phase:
        raise UserError("--phase is of a run; name one with --model NAME")
    check_name_of_run(args.model or "", args.runs)
    from posttrain.runs.build import load_policy

    config = Config(model=args.model or "pocket", device=args.device, dtype=args.dtype or "", adapter=args.adapter)
    return load_policy(config), config


def is_run(name: str, runs: str) -> bool:
    """Whether a name is that of a run: under `runs`, or a path."""
    return any((folder / "run.sqlite").exists() for folder in (Path(runs) / name, Path(name)))


def check_name_of_run(name: str, runs: str) -> None:
    """A name that is nearly that of a run is an error that suggests the run, before anything else is searched."""
    there = [p.parent.name for p in Path(runs).glob("*/run.sqlite")]
    if "/" not in name and name not in ("", "pocket", "smollm2") and not Path(name).exists() and nearest(name, there):
        raise unknown("model or run", name, there)


def run_folder(name: str, runs: str = "runs") -> Path:
    """The folder of a run by its name under `runs`, or by its path."""
    for folder in (Path(runs) / name, Path(name)):
        if (folder / "config.json").exists() and (folder / "run.sqlite").exists():
            return folder
    there = sorted(p.parent.name for p in Path(runs).glob("*/run.sqlite"))
    if not there:
        raise UserError(f"no run named {name!r}: there are no runs in {runs}; start one: posttrain run grpo")
    raise unknown("run", name, there)


def load_run(folder: Path, phase: str | None = None, device: str = "", dtype: str | None = None) -> tuple[Any, Config]:
    """The policy at the newest checkpoint of a run."""
    from posttrain.runs.build import load_policy
    from posttrain.runs.run import Run

    with Run.open(folder) as run:
        known = {f.name for f in dataclasses.fields(Config)}
        config: Config = from_dict(Config, {k: v for k, v in run.config.items() if k in known})
        config = dataclasses.replace(config, device=device, dtype=dtype or config.dtype)
        policy = load_policy(config)
        run.load_weights(phase or last_phase(run), policy)
    return policy, config


def last_phase(run: Any) -> str:
    """The newest phase that trained a role that generates answers; where several roles do and the last to be trained is not
    the policy, it is ambiguous and an error."""
    from posttrain.runs.checkpoint import listing

    trained: list[str] = [phase for phase in run.store.phases() if listing(run.checkpoints, phase)]
    if not trained:
        raise UserError(f"{run.folder} has no checkpoint yet; let it run for save_every steps, or use --model")
    roles = {phase: role for phase in trained if (role := answering_role(run, phase))}
    if not roles:
        raise UserError(f"{run.folder} holds a reward model, which answers nothing; use a run that trains a policy")
    last = list(roles)[-1]
    ends = {role: phase for phase, role in roles.items()}  # the newest phase of each role
    if len(ends) > 1 and roles[last] != "policy":
        told = ", ".join(f"--phase {phase} (the {role})" for role, phase in ends.items())
        raise UserError(f"{run.folder} trained several roles that answer; say which is meant: {told}")
    return last


def answering_role(run: Any, phase: str) -> str:
    """The role that a phase trained, "" where it does not generate answers. Older runs did not record roles: a score head decides."""
    from posttrain.runs.checkpoint import newest

    if phase in run.store.roles():
        role, answers = run.store.roles()[phase]
        return role if answers else ""
    ck = newest(run.checkpoints, phase)
    return "policy" if ck is not None and not any(k.startswith("score.") for k in ck.tables["weights"]) else ""


def reward_model_folder(name: str, runs: str) -> Path | None:
    """The folder of a reward model, if the name is one's: a run that trained nothing else, or a sequence classifier."""
    from posttrain.runs.checkpoint import listing
    from posttrain.runs.run import Run

    if is_run(name, runs):
        folder = run_folder(name, runs)
        with Run.open(folder) as run:
            trained = [phase for phase in run.store.phases() if listing(run.checkpoints, phase)]
            return folder if trained and not any(answering_role(run, phase) for phase in trained) else None
    try:
        kinds = json.loads((Path(name) / "config.json").read_text()).get("architectures") or []
    except (OSError, ValueError, AttributeError):
        return None
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return Path(name) if any(str(kind).endswith("ForSequenceClassification") for kind in kinds) else None
