"""Threads: measured once, written into the run, used again; a busy machine is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from posttrain.core import machine
from posttrain.core.errors import UserError
from posttrain.runs import threads
from posttrain.runs.threads import FILE, Busy, choose, settle


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("seconds", "want"), [({4: 1.0, 1: 1.2}, 4), ({4: 3.0, 1: 0.1}, 1), ({4: 1.1, 1: 1.0}, 4)])
def test_the_faster_number_is_chosen(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], want: int) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(threads, "probe", seconds.__getitem__)
    torch.set_num_threads(4)
    assert choose() == want


def test_a_users_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(threads, "probe", lambda n: pytest.fail("nothing is to be measured"))
    torch.set_num_threads(1)
    assert choose() == 1
    torch.set_num_threads(3)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choose() == 3


@pytest.mark.parametrize(
    ("device", "there", "want"), [("cuda:1", True, 4), ("", True, 4), ("", False, 8), ("cpu", True, 8)]
)
def test_beside_a_gpu_a_few_are_enough(
    monkeypatch: pytest.MonkeyPatch, device: str, there: bool, want: int, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(threads, "probe", lambda n: 1.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert settle(tmp_path, device=device) == want


def test_a_quota_counts_as_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr(machine, "_GROUP", tmp_path)
    assert machine.cores() == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.cores() >= 1


def test_a_resumed_run_takes_the_number_it_began_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threads, "choose", lambda device: 2)
    assert settle(tmp_path) == 2 == torch.get_num_threads()
    monkeypatch.setattr(threads, "choose", lambda device: 1)
    torch.set_num_threads(1)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    assert settle(tmp_path) == 2 == torch.get_num_threads()
    assert capsys.readouterr().err == ""
    path = tmp_path / FILE
    path.write_text(json.dumps({"threads": 2, "torch": "1.0"}))
    monkeypatch.setattr(machine, "cores", lambda: 1)
    settle(tmp_path)
    said = capsys.readouterr().err
    assert "torch 1.0" in said and "2 threads, and 1 cores" in said
    path.write_text(json.dumps({"threads": "two"}))
    with pytest.raises(UserError, match=r"says 'two' threads, expected a number"):
        settle(tmp_path)


def test_a_machine_that_gets_busy_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(threads.time, "perf_counter", lambda: clock[0])
    busy = Busy()
    said = []
    for step, seconds in enumerate([1.0] * 8 + [6.0] * 6 + [1.0] * 3):
        clock[0] += seconds
        said.append(busy.check(step, [], {"tokens": 100.0}, None))
    assert [i for i, line in enumerate(said) if line] == [10] and "6 times as long" in said[10]
    assert "the machine is busy" in capsys.readouterr().err
    for step in range(20, 23):  # twice the tokens in twice the time is nothing new
        clock[0] += 8.0
        assert not busy.check(step, [], {"tokens": 800.0}, None)
