"""What rewards print goes to stderr, where a terminal does nothing but show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.types import Prompt
from posttrain.rewards.runtime.file_reward import FileReward
from posttrain.rewards.runtime.score import RewardSum

PROMPTS = [Prompt.text(f"p{i}", f"What is {i}+1?", str(i + 1)) for i in range(2)]
LOUD = """
import os, sys

def loud(prompt, text):
    print("to stdout")
    os.write(1, b"to the descriptor\\n")
    return 1.0

def shows(prompt, text):
    print("it says", text)
    print(text, file=sys.stderr)
    sys.stdout.write("\\udcff odd, no line break")
    return 1.0
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rewards") / "loud_rewards.py"
    made.write_text(LOUD)
    return made


def in_worker(file: Path, name: str, texts: list[str]) -> list[float]:
    return RewardSum([(name, FileReward(str(file), name), 1.0)]).texts(PROMPTS[: len(texts)], texts)[0]


def test_prints_change_no_number(file: Path, capfd: Any) -> None:
    assert in_worker(file, "loud", ["a", "b"]) == [1.0, 1.0]
    told = capfd.readouterr()
    assert told.out == "" and told.err.count("to stdout") == 2 and told.err.count("to the descriptor") == 2


def test_prints_of_rewards_do_not_break_json(file: Path, capfd: Any) -> None:
    assert call_fd(["audit", f"{file}:loud", "--problems", "2", "--json"], capfd)["rows"]

    def noisy(prompt: Prompt, text: str) -> float:
        print("in process")
        return 1.0

    assert RewardSum([("noisy", noisy, 1.0)]).texts(PROMPTS, ["a", "b"])[0] == [1.0, 1.0]
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("in process") == 2


def call_fd(argv: list[str], capfd: Any) -> Any:
    from posttrain.cli import main

    capfd.readouterr()
    assert main(argv) in (0, 1)
    return json.loads(capfd.readouterr().out)


def test_escape_sequences_of_an_answer_are_shown_and_not_obeyed(file: Path, capfd: Any) -> None:
    """A title, a cleared screen, a carriage return and a byte that is no text: in a worker process and in this one."""
    answer = "\x1b]0;owned\x07 \x1b[2J\rgone \x9b\ttab"
    assert in_worker(file, "shows", [answer]) == [1.0]
    worker = capfd.readouterr().err

    def mine(prompt: Prompt, text: str) -> float:
        print("it says", text)
        return 1.0

    assert RewardSum([("mine", mine, 1.0)]).texts(PROMPTS[:1], [answer])[0] == [1.0]
    here = capfd.readouterr().err
    told = "it says \\x1b]0;owned\\x07 \\x1b[2J\\rgone \\x9b\ttab\n"
    assert told in here and told in worker and worker.count("owned") == 2 and "odd, no line break" in worker
    assert not set(worker + here) & set("\x1b\x07\r\x9b")
