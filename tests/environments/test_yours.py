"""`--task mine.py:Name` with the mistakes that people make: one sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.core.errors import UserError
from posttrain.environments.task import task

MINE = """
import posttrain as pt

class Game:
    def __init__(self, top=4):
        self.top = top
    def prompt(self, index, split="train"):
        return pt.Prompt.text(f"{split}-{index}", f"up to {self.top}")

class Needs(Game):
    def __init__(self, top):
        super().__init__(top)

class Down(Game):
    def __init__(self):
        raise RuntimeError("no server")

def number():
    return 5
"""


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (":Gmae", "no environment in .* named 'Gmae'; did you mean 'Game'"),
        (":Needs", "cannot be made with no options: .*'top'"),
        (":Game(tpo=3)", "cannot be made with .*'tpo'"),
        (":Down", "failed when it was made: RuntimeError: no server"),
        (":number", "int is no environment"),
        ("", "is a Python file; name the environment in it: --task .*:Name"),
    ],
)
def test_mistakes(tmp_path: Path, spec: str, told: str) -> None:
    file = tmp_path / f"{tmp_path.name}_env.py"  # a module's name is taken once
    file.write_text(MINE)
    with pytest.raises(UserError, match=told):
        task(f"{file}{spec}")


@pytest.mark.parametrize("text", ["class Game(:", "import nothere", "raise SystemExit(3)"])
def test_a_file_that_does_not_load(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken_env.py").write_text(text)
    with pytest.raises(UserError, match=r"broken_env.py line 1: "):
        task(f"{tmp_path / 'broken_env.py'}:Game")


def test_options_reach_the_environment(tmp_path: Path) -> None:
    (tmp_path / "working_env.py").write_text(MINE)
    assert task(f"{tmp_path / 'working_env.py'}:Needs(top=9)").prompt(0).last == "up to 9"
