"""A mistake that all processes of a run meet is told once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from posttrain.cli import tell
from posttrain.distributed import spokesman
from posttrain.distributed.launch import free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), (spokesman.FOLDER, str(tmp_path))):
        monkeypatch.setenv(name, value)
    yield tmp_path


def test_the_second_is_quiet_when_the_first_has_told_it(second: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (second / "told").write_text("the file is empty (on node a)")
    tell("the file is empty (on node b)")
    assert capsys.readouterr().err == ""
    tell("no GPU")
    assert capsys.readouterr().err == "error: process 1: no GPU\n"


def test_the_second_waits_for_the_first_and_speaks_if_it_says_nothing(
    second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not spokesman.heard("the file is empty", wait=0.05)
    (second / "written").write_text("the file is empty")
    late = Thread(target=lambda: (second / "written").replace(second / "told"))  # whole at once
    late.start()
    assert spokesman.heard("the file is empty", wait=20)
    late.join()


def test_the_first_tells_and_leaves_word(second: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setenv("RANK", "0")
    tell("the file is empty")
    assert capsys.readouterr().err == "error: the file is empty\n"
    assert (second / "told").read_text() == "the file is empty"
    monkeypatch.delenv("RANK")
    tell("alone")
    assert capsys.readouterr().err == "error: alone\n" and (second / "told").read_text() == "the file is empty"


def test_torchrun_keeps_a_store(second: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    agent = TCPStore("127.0.0.1", port := free_port(), is_master=True, wait_for_workers=False)
    monkeypatch.delenv(spokesman.FOLDER)
    for name, value in (("TORCHELASTIC_USE_AGENT_STORE", "True"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(port))):  # fmt: skip
        monkeypatch.setenv(name, value)
    assert not spokesman.heard("the file is empty", wait=0.05)
    spokesman.leave_word("the file is empty")
    assert spokesman.heard("the file is empty") and not spokesman.heard("no GPU")
    del agent
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")  # started by hand: nobody keeps word, so each speaks
    assert not spokesman.heard("the file is empty")


def test_two_processes_tell_a_mistake_once(tmp_path: Path) -> None:
    words = ["run", "grpo", "--task", "nowhere.jsonl", "--device", "cpu", "--gpus", "2"]
    made = subprocess.run(
        [sys.executable, "-m", "posttrain", *words], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert made.returncode == 2
    assert made.stderr.count("nowhere.jsonl") == 1 and made.stderr.count("error:") == 1
