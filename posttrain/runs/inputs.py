"""What a run learns from besides its settings: files of yours and other runs. If one changes, the run is another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from posttrain.core.errors import UserError
from posttrain.runs.run import Run
from posttrain.runs.saved import scoring_phase
from posttrain.runs.settings import digest
from posttrain.runs.trained import Trained, weights_digest

_FILE = re.compile(r"([^\s+*'\"(),=][^+*'\"(),=]*?\.py):\w+")
_QUOTED = re.compile(r"'([^']+)'")
_PATH = re.compile(r"(?:^|[+*])\s*([^\s+*'\"(),=]+/[^\s+*'\"(),=]*)\s*(?=$|\+)")


def inputs(reward: str, use: Iterable[str] = ()) -> dict[str, str]:
    """name -> what it holds now, for the files and runs that a reward names, and for files of parts."""
    files = [*use, *_FILE.findall(reward)]
    folders = [p for p in (*_QUOTED.findall(reward), *_PATH.findall(reward)) if Path(p, "run.sqlite").exists()]
    out = {file: code_digest(Path(file)) for file in dict.fromkeys(files)}
    return out | {folder: reward_digest(Path(folder)) for folder in dict.fromkeys(folders)}


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
    with Run.open(folder) as run:
        phase = scoring_phase(run)
    return weights_digest(Trained(folder, phase=phase))
