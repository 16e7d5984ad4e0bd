"""What a worker is told at its start: the settings, which it builds everything from; and what must be the same where it runs."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from posttrain.core.config import Config, from_dict, to_dict
from posttrain.core.errors import UserError
from posttrain.core.python_file import import_file
from posttrain.core.registry import Part, find
from posttrain.environments.contents import contents
from posttrain.runs.wire import Unsendable, pack

PACKAGE = Path(__file__).parents[1]


def setup(
    config: Config,
    rollout: Part,
    role: str = "rollout",
    env: bool = True,
    use: Sequence[str] = (),
    folder: Path = Path(),
) -> bytes:
    """The settings as bytes. env: the worker builds the task itself; it need not where it only answers prompts that it is sent.
    folder: of the run."""
    params = {k: v for k, v in rollout.params.items()}
    told = {
        "role": role,
        "config": to_dict(config),
        "rollout": [rollout.name, params],
        "env": env,
        "use": [str(Path(file).absolute()) for file in use],
        "cwd": os.getcwd(),
        "folder": str(folder.absolute()),
        "threads": torch.get_num_threads(),
        "code": code(),
        "contents": contents(config.task) if env else {},
    }
    try:
        return pack(told)
    except Unsendable as error:
        raise UserError(
            f"a worker builds the rollout {rollout.name} from its name and parameters, and one of them is {error}; use --sampler local"
        ) from None


def check(told: dict[str, Any]) -> None:
    """Before anything is built: a worker with other code or other data would be silently wrong."""
    if told["code"] != code():
        raise UserError(
            f"a worker has other code of posttrain ({code()}, in {PACKAGE}) than the run ({told['code']}); install the same version on "
            "every machine, and do not change it during a run"
        )
    if os.path.isdir(told["cwd"]):
        os.chdir(told["cwd"])
    for file in told["contents"]:
        if not Path(file).is_file():
            raise UserError(
                f"a worker cannot read {file} of the task (in {os.getcwd()}); put it at the same path on every machine"
            )
    if (have := contents(told["config"]["task"]) if told["env"] else {}) != told["contents"]:
        other = next(f for f in {**have, **told["contents"]} if have.get(f) != told["contents"].get(f))
        raise UserError(f"a worker has another {other} than the run; copy the same file to every machine")


def restored(told: dict[str, Any], index: int) -> tuple[Config, Part]:
    """The settings and the rollout part, in a worker."""
    torch.set_num_threads(told["threads"])
    for file in told["use"]:
        import_file(file, f"--use {file}")
    config: Config = from_dict(Config, told["config"])
    name, params = told["rollout"]
    return dataclasses.replace(config, device=device(config.device, index)), find(name, "rollout").but(**params)


def device(asked: str, index: int) -> str:
    """Workers of a run that names no device share the GPUs besides the first, which trains; where there is one, they share that."""
    if asked or torch.cuda.device_count() < 2:
        return asked
    return f"cuda:{1 + index % (torch.cuda.device_count() - 1)}"


@cache
def code() -> str:
    """A short hash of the package's own code."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    return digest.hexdigest()[:10]
