"""One small run for all tests of the command line: two steps of the built-in model, short answers."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from posttrain.cli import main
from posttrain.core.registry import _PARTS

SMALL = [
    "--steps",
    "2",
    "--prompts",
    "2",
    "--num-generations",
    "2",
    "--eval-problems",
    "4",
    "--sampling.max-tokens",
    "24",
]
# hot sampling and a reward for short answers, so that siblings differ and there is something to learn from
FIRST = [
    "run",
    "grpo",
    "--reward",
    "length(target=1, soft=200, unit='characters')",
    *SMALL,
    "--sampling.temperature",
    "3",
]


@dataclass
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def call(*argv: str) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(argv))
    return Said(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def first_run(runs: Path) -> Said:
    """`posttrain run grpo`, once; its folder is runs/grpo-arithmetic."""
    return call(*FIRST, "--runs", str(runs))


@pytest.fixture
def parts_file(tmp_path: Path) -> Iterator[Path]:
    """A user's file: a reward, one that raises, one that raises now and then, and a method; forgotten afterwards."""
    file = tmp_path / f"parts_{tmp_path.name}.py"
    name = tmp_path.name.replace("_", "-")
    file.write_text(
        "from posttrain.core.method import find_method, method\n"
        "from posttrain.core.registry import reward\n"
        "@reward()\n"
        "def short_answers(prompt, text):\n"
        '    """Short answers: the shorter the better."""\n'
        "    return 1.0 / (1 + len(text))\n"
        "@reward()\n"
        "def always_raises(prompt, text):\n"
        '    """Raises: always."""\n'
        "    raise KeyError('no such key')\n"
        "@reward()\n"
        "def picky(prompt, text):\n"
        '    """Picky: raises where the gold answer is no number."""\n'
        "    return float(str(int(prompt.answer)) in text)\n"
        f"mine = find_method('grpo').but(name='mine-{name}', title='Mine', doc='Mine: no KL.', terms=())\n"
        "method(mine)\n"
    )
    yield file
    for shelf in _PARTS.values():
        for part in [p for p in shelf.values() if p.card.file == str(file.resolve())]:
            del shelf[part.name]
    sys.modules.pop(file.stem, None)
