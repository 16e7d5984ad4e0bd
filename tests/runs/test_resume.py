"""Exact resume: kill -9 at any moment, give the same command again, and the end is bit-identical to a whole run."""

from __future__ import annotations

import json
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from posttrain.runs.checkpoint import listing, read
from posttrain.runs.run import Run

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.runs.tiny_run"]
KILLED = -signal.SIGKILL
PAUSED = 75


class Nursery:
    """The process that forks runs for us: torch is imported once, each run is a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--serve"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self, folder: Path, kill_at: int = 0, kill_after: float = 0.0, plan: bool = False, kind: str = "", **more: Any
    ) -> int:
        """How the run ended: 0, or -9 when killed at its kill_at-th dangerous moment, after so many seconds, or while the rows of
        its in_write-th step are written; 75 when it was asked to stop (term: by SIGTERM at that moment, hours: by a time limit)."""
        request = {
            "kill_at": kill_at,
            "kill_after": kill_after,
            "plan": plan,
            "kind": kind,
            "folder": str(folder),
        } | more
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["code"]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    assert made.process.stdin
    made.process.stdin.close()
    made.process.wait(10)


@pytest.fixture(scope="module")
def whole(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run that nobody disturbed leaves behind."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert nursery.run(folder) == 0
    return ending(folder)


def ending(folder: Path) -> dict[str, Any]:
    """Everything a run ends with, as bytes and exact rows; time is not part of it."""
    run = Run.open(folder)
    out: dict[str, Any] = {"metrics": [], "phases": run.store.phases()}
    for row in run.store.metrics():
        out["metrics"].append((row["phase"], row["step"], row["name"], struct.pack("<d", row["value"])))
    out["rollouts"] = run.store.rollouts()
    told = [e for e in run.store.events() if e["kind"] != "restart"]  # it was restarted, and says so
    out["events"] = [(e["phase"], e["step"], e["kind"], e["message"]) for e in told]
    for phase in run.store.phases():
        out[f"finished {phase}"] = run.finished(phase)
        for step, path in listing(run.checkpoints, phase):
            out[f"state {phase} {step}"] = plain(read(path).state)
            for file in sorted(path.glob("*.safetensors")):
                out[f"{phase} {step} {file.name}"] = file.read_bytes()
    for file in (folder / "artifacts").glob("*"):
        out[file.name] = file.read_text()
    run.close()
    return out


def plain(x: Any) -> Any:
    """Tensors as lists, so that states can be compared."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    return x.tolist() if hasattr(x, "tolist") else x


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    assert [key for key, value in a.items() if value != b[key]] == []


def test_the_whole_run_is_worth_comparing(whole: dict[str, Any]) -> None:
    """Weights, moments, a moving reference and a changing KL price are all there, and seven steps of metrics."""
    names = {k.split()[-1] for k in whole if k.endswith("safetensors")}
    assert names == {"weights.safetensors", "optimiser.safetensors", "reference.safetensors"}
    prices = [whole[f"state train {step}"]["parts"]["shaping0"]["coef"] for step in (5, 6)]
    assert prices[0] != prices[1] and 0.2 not in prices
    assert whole["train 5 weights.safetensors"] != whole["train 6 weights.safetensors"]
    assert {row[1] for row in whole["metrics"]} == set(range(7))
    assert whole["finished train"]


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_dangerous_moments(nursery: Nursery, tmp_path: Path, whole: dict[str, Any], seed: int) -> None:
    """Flushes, renames, removals, tables, transactions, optimiser steps: the next 1 to 45 of them end in SIGKILL."""
    random, kills, folder = Random(seed), 0, tmp_path / "run"
    while (code := nursery.run(folder, kill_at=random.randint(1, 45))) != 0:
        assert code == KILLED
        kills += 1
        assert kills < 200, "the run never gets anywhere"
    assert kills >= 5
    same(ending(folder), whole)


def test_killed_at_every_moment_from_a_restart_to_the_end(
    nursery: Nursery, tmp_path: Path, whole: dict[str, Any]
) -> None:
    """A run killed in step 6 is restarted once for each moment it has left, killed there, and then run to its end.

    Left are a rollout, 4 updates, the log, a checkpoint, the removal of an older one, the end: at least 20 moments.
    """
    base = tmp_path / "base"
    for moment in range(80, 200):  # a checkpoint is written beside the next step, so the moment differs from run to run
        shutil.rmtree(base, ignore_errors=True)
        assert nursery.run(base, kill_at=moment) == KILLED
        if [step for step, _ in listing(base / "checkpoints", "train")] == [5, 3]:
            break
    for moment in range(1, 100):
        folder = tmp_path / f"run{moment}"
        shutil.copytree(base, folder)
        if nursery.run(folder, kill_at=moment) == 0:
            break
        assert nursery.run(folder) == 0
        same(ending(folder), whole)
    assert moment > 20


def test_killed_at_random_times_from_outside(nursery: Nursery, tmp_path: Path, whole: dict[str, Any]) -> None:
    random, kills, folder = Random(7), 0, tmp_path / "run"
    for _ in range(10):
        kills += nursery.run(folder, kill_after=random.uniform(0.02, 0.35)) == KILLED
    assert kills >= 1  # how many depends on the speed of the machine
    assert nursery.run(folder) == 0
    same(ending(folder), whole)


def test_killed_while_rows_are_written_beside_training(nursery: Nursery, tmp_path: Path, whole: dict[str, Any]) -> None:
    """The thread that writes dies in the transaction of a step; checkpoints never know of steps without rows."""
    for moment in (1, 4, 6):
        folder = tmp_path / f"run{moment}"
        assert nursery.run(folder, in_write=moment) == KILLED
        saved = [step for step, _ in listing(folder / "checkpoints", "train")]
        with Run.open(folder) as run:
            there = [step for step, _ in run.store.series("reward")]
        assert there == list(range(moment - 1)) and max(saved, default=-1) < moment - 1
        assert nursery.run(folder) == 0
        same(ending(folder), whole)


def test_a_process_of_its_own_killed_and_resumed(tmp_path: Path, whole: dict[str, Any]) -> None:
    """The same without the nursery: a cold process, killed as it writes a checkpoint, then run to its end."""
    folder = tmp_path / "run"
    assert subprocess.run([*COMMAND, str(folder), "45"], cwd=ROOT).returncode == KILLED
    assert [step for step, _ in listing(folder / "checkpoints", "train")] == [1]
    subprocess.run([*COMMAND, str(folder)], cwd=ROOT, check=True)
    same(ending(folder), whole)
    for _ in range(2):  # of a finished run nothing is done again
        with Run.open(folder) as run:
            restarts = [(e["phase"], e["step"], e["message"]) for e in run.store.events() if e["kind"] == "restart"]
        assert [r[:2] for r in restarts] == [("train", 1)]
        assert re.fullmatch(
            r"went on from the checkpoint after step 2(; \d later steps? (is|are) done again)?", restarts[0][2]
        )
        subprocess.run([*COMMAND, str(folder)], cwd=ROOT, check=True)


def test_a_damaged_checkpoint_costs_time_not_exactness(nursery: Nursery, tmp_path: Path, whole: dict[str, Any]) -> None:
    """The newest of a finished run loses half a file; the run goes back to the one before and ends the same."""
    folder = tmp_path / "run"
    assert nursery.run(folder) == 0
    (_, newest), *_ = listing(folder / "checkpoints", "train")
    damaged = newest / "optimiser.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    assert nursery.run(folder) == 0
    same(ending(folder), whole)


def test_a_plan_of_two_phases(nursery: Nursery, tmp_path: Path) -> None:
    """Supervised, then a piece of work, then reinforcement: kills in each of them, and between them."""
    assert nursery.run(tmp_path / "whole" / "run", plan=True) == 0
    random, kills, folder = Random(3), 0, tmp_path / "killed" / "run"
    while (code := nursery.run(folder, kill_at=random.randint(1, 50), plan=True)) != 0:
        assert code == KILLED
        kills += 1
        assert kills < 200, "the run never gets anywhere"
    assert kills >= 5
    whole = ending(tmp_path / "whole" / "run")
    assert whole["phases"] == ["sft", "note", "rl"] and whole["finished rl"]
    same(ending(folder), whole)


def test_a_finished_phase_whose_last_checkpoint_is_damaged_is_ended_again(nursery: Nursery, tmp_path: Path) -> None:
    """The plan is killed in its third phase, then the last checkpoint of its first loses a byte: never the weights before it."""
    assert nursery.run(tmp_path / "whole" / "run", plan=True) == 0
    folder = tmp_path / "killed" / "run"
    while not (folder / "checkpoints").exists() or not listing(folder / "checkpoints", "rl"):
        assert nursery.run(folder, kill_at=35, plan=True) == KILLED
    assert [step for step, _ in listing(folder / "checkpoints", "sft")] == [2, 1]
    damaged = folder / "checkpoints" / "sft-000002" / "weights.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for _, path in listing(folder / "checkpoints", "rl"):
        shutil.rmtree(path)
    assert nursery.run(folder, plan=True) == 0
    same(ending(folder), ending(tmp_path / "whole" / "run"))


# ---- stopped, not killed


@pytest.mark.parametrize("plan", [False, True])
def test_sigterm_saves_exits_and_goes_on(nursery: Nursery, tmp_path: Path, whole: dict[str, Any], plan: bool) -> None:
    """SIGTERM at the next 1 to 20 moments, again and again: each time it exits with 75, and the end is that of a whole run."""
    if plan:
        assert nursery.run(tmp_path / "whole" / "run", plan=True) == 0
        whole = ending(tmp_path / "whole" / "run")
    random, stops, folder = Random(5), 0, tmp_path / "stopped" / "run"
    while (code := nursery.run(folder, kill_at=random.randint(1, 20), term=True, plan=plan)) != 0:
        assert code == PAUSED
        stops += 1
        assert stops < 100, "the run never gets anywhere"
    assert stops >= 2
    same(ending(folder), whole)


def test_sigterm_loses_no_step(nursery: Nursery, tmp_path: Path) -> None:
    """Saved every 2 steps; stopped in the third (its updates are moments 20 to 30), it is saved after the third."""
    for moment in range(14, 60):
        folder = tmp_path / f"run{moment}"
        if nursery.run(folder, kill_at=moment, term=True) == PAUSED:
            with Run.open(folder) as run:
                done = len(run.store.series("reward"))
            newest = [step for step, _ in listing(folder / "checkpoints", "train")]
            assert newest[:1] == [done - 1]
            if done == 3:
                return
    pytest.fail("no signal fell into the third step")


def test_a_time_limit_saves_after_a_step_and_every_start_gets_on(
    nursery: Nursery, tmp_path: Path, whole: dict[str, Any]
) -> None:
    """A limit that is always over: one step a start, so that 7 steps take 6 that are stopped and a last one."""
    folder = tmp_path / "run"
    codes = [nursery.run(folder, hours=1e-9) for _ in range(7)]
    assert codes == [PAUSED] * 6 + [0]
    same(ending(folder), whole)
