"""What a run learns from besides its settings: files of yours and other runs. If one changes, the run is another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from posttrain.core.errors import UserError
from posttrain.core.python_file import helpers
from posttrain.rewards.scorers.learned import run_of
from posttrain.rewards.scorers.spec import summands as read_summands
from posttrain.runs.run import Run
from posttrain.runs.saved import scoring_phase
from posttrain.runs.settings import digest
from posttrain.runs.trained import Trained, weights_digest

_FILE = re.compile(r"([^\s+*'\"(),=][^+*'\"(),=]*?\.py):\w+")
_QUOTED = re.compile(r"['\"]([^'\"]+)['\"]")


def inputs(reward: str, use: Iterable[str] = ()) -> dict[str, str]:
    """name -> what it holds now, for the files and runs that a reward names, for files of parts, and for modules beside them that
    they import."""
    files = with_helpers([*use, *_FILE.findall(reward)])
    named = [name for spec in (reward, *_QUOTED.findall(reward)) for _, name in summands(spec)] if reward else []
    folders = [name.strip("'") for name in named if (run_of(Path(name.strip("'")))[0] / "run.sqlite").exists()]
    out = {file: code_digest(Path(file)) for file in dict.fromkeys(files)}
    return out | {folder: reward_digest(Path(folder)) for folder in dict.fromkeys(folders)}


def with_helpers(files: Iterable[str]) -> list[str]:
    return [name for file in files for name in (file, *map(str, helpers(Path(file))))]


def summands(spec: str) -> list[tuple[float, str]]:
    """The rewards of a sum; none where it is no sum of rewards (a parameter of one that is another text)."""
    try:
        return read_summands(spec)
    except UserError:
        return []


def code_digest(file: Path) -> str:
    """What a Python file does: comments and spaces do not count."""
    try:
        text = file.read_bytes()
    except OSError:
        raise UserError(f"{file}: there is no such file, or it cannot be read") from None
    try:
        return digest(ast.dump(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return digest(text)  # importing it says what is wrong


def reward_digest(folder: Path) -> str:
    """Which weights of a run are the reward."""
    folder, at = run_of(folder)
    with Run.open(folder) as run:
        phase = scoring_phase(run)
    return weights_digest(Trained(folder, at, phase))
