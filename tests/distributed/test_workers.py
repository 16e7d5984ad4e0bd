"""Workers in other processes: the same run, bit for bit, however many there are and whoever of them is killed."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.core.errors import UserError
from posttrain.distributed import choose
from posttrain.distributed.process import Process
from posttrain.runs.wire import pack, unpack
from tests.distributed import small
from tests.distributed.test_lag import Nursery, nursery
from tests.runs.test_resume import ending, same

__all__ = ["nursery"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.files(tmp_path_factory.mktemp("files"))


def learned(folder: Path) -> dict[str, Any]:
    """All that a run leaves behind, but for the fingerprint of its settings: who samples is one of them."""
    out = ending(folder)
    for state in (v for k, v in out.items() if k.startswith("state")):
        state.pop("config")
    return out


class Killer:
    """Kills a worker with SIGKILL while step 1 is being learned from, and notes who worked."""

    def __init__(self, made: list[Process]) -> None:
        self.made, self.pids = made, set()  # type: ignore[var-annotated]

    def on_rollouts(self, loop: Any, step: int, groups: Any) -> None:
        self.pids |= {p.pid for p in self.made}
        if step == 1:
            os.kill(self.made[0].pid or 0, signal.SIGKILL)


def test_processes_make_the_run_that_one_makes_and_one_is_killed(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made: list[Process] = []
    monkeypatch.setattr(choose, "Process", lambda told, i: made.append(Process(told, i)) or made[-1])
    killer = Killer(made)
    small.start(files, tmp_path / "local", lag=1, steps=4)
    small.start(files, tmp_path / "other", (killer,), lag=1, sampler="process", steps=4)
    same(learned(tmp_path / "other/small"), learned(tmp_path / "local/small"))
    assert len(killer.pids) == 2, "the one that was killed was replaced"
    assert all(p.popen is not None and p.popen.poll() is not None for p in made), "they end with the run"
    weights = learned(tmp_path / "local/small")
    assert weights["train 1 weights.safetensors"] != weights["train 3 weights.safetensors"], "something is learned"


@pytest.mark.parametrize("lag", [0, 1])
def test_the_trainer_is_killed_at_dangerous_moments(
    nursery: Nursery, files: Path, tmp_path: Path, lag: int
) -> None:  # fmt: skip
    """Publishing of weights, the ledger, checkpoints: flushes, renames and steps that end in SIGKILL."""
    how = {"files": str(files), "lag": lag}
    assert nursery.run(tmp_path / "whole", sampler="local", **how) == 0
    for at in (11, 52, 44):  # of which the second and third begin where those before them ended
        assert nursery.run(tmp_path / "killed", at, sampler="process", **how) == -signal.SIGKILL
    assert nursery.run(tmp_path / "killed", sampler="process", **how) == 0
    same(learned(tmp_path / "killed/small"), learned(tmp_path / "whole/small"))
    assert not list((tmp_path / "killed/small/versions").iterdir()), "weights that nobody needs are gone"


def test_a_run_goes_on_with_other_workers(nursery: Nursery, files: Path, tmp_path: Path) -> None:
    """Begun by two workers and killed, ended by this process alone: who samples is no setting that matters."""
    how = {"files": str(files), "lag": 1}
    assert nursery.run(tmp_path / "whole", sampler="process", rollout_workers=2, **how) == 0
    code = nursery.run(tmp_path / "moved", 60, sampler="process", rollout_workers=3, **how)
    assert code == -signal.SIGKILL
    assert nursery.run(tmp_path / "moved", sampler="local", **how) == 0
    same(learned(tmp_path / "moved/small"), learned(tmp_path / "whole/small"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rollout_workers": 2}, "--rollout-workers 2 needs --sampler process"),
        ({"ray_address": "host:1"}, "--ray-address host:1 needs --sampler ray"),
        ({"lag": -1}, "lag is -1; it must be at least 0"),
        ({"sampler": "thread"}, "sampler is 'thread'; use 'local', 'process' or 'ray'"),
        ({"reward_workers": 1, "reward": "mine.py:many"}, "asked about all answers of a step at once"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(
    files: Path, tmp_path: Path, changes: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def many(prompts, texts):\n    return [0.0 for _ in texts]\n")
    with pytest.raises(UserError, match=told):
        small.start(files, tmp_path, **changes)


def test_rows_and_a_function_of_python_with_workers(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are sent the prompts; the reward stays here."""
    monkeypatch.setattr(choose, "Process", small.Inside)
    rows = [{"question": f"write {c}{i}", "answer": c} for i in range(5) for c in "abcd"]
    plain: dict[str, Any] = {
        "model": str(files / "model"), "task": rows, "reward": lambda prompt, text: text.count(prompt.answer) / 8, "steps": 2, "prompts": 4,
        "eval_problems": 2, "sampling": {"max_tokens": 8}, "shards": 2, "threads": 1, "name": "small",
    }  # fmt: skip
    for name in ("local", "process"):
        posttrain.run(**plain, sampler=name, runs=str(tmp_path / name))
    same(learned(tmp_path / "process/small"), learned(tmp_path / "local/small"))


def test_a_worker_that_cannot_read_the_task_ends_the_run_with_its_sentence(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Poor(small.Inside):
        """A machine where the file is another one."""

        def start(self) -> bytes:
            told = unpack(self.setup)
            wrong = {file: "other" for file in told["contents"]}
            self.setup = pack(told | {"contents": wrong})
            try:
                return super().start()
            except UserError as error:
                return b"!" + str(error).encode()

    monkeypatch.setattr(choose, "Process", Poor)
    with pytest.raises(UserError, match=r"a worker has another .*questions\.jsonl than the run; copy the same file"):
        small.start(files, tmp_path, sampler="process")


def test_no_more_workers_than_shards(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Three shards a step, and those of two steps at a time: six of 5,000 workers have something to do."""
    made: list[small.Inside] = []
    monkeypatch.setattr(choose, "Process", lambda told, i: made.append(small.Inside(told, i)) or made[-1])
    small.start(files, tmp_path, sampler="process", rollout_workers=5000, lag=1, steps=1, eval_problems=0)
    assert len(made) == 6
    assert "--rollout-workers 5000: 6 are started" in capfd.readouterr().err


class Cleaner:
    """Somebody who removes the weights that workers are to read next."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_rollouts(self, loop: Any, step: int, groups: Any) -> None:
        publish = loop.source.sampler.versions.publish

        def removed(number: int, policy: Any) -> Any:
            found = publish(number, policy)
            shutil.rmtree(self.folder / "versions")
            return found

        loop.source.sampler.versions.publish = removed


def test_weights_that_somebody_removed(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "Process", small.Inside)
    with pytest.raises(UserError, match=r"a worker cannot read .*, the weights of version 1: somebody removed them"):
        small.start(files, tmp_path, (Cleaner(tmp_path / "small"),), sampler="process", eval_problems=0)
    small.start(files, tmp_path, sampler="process", eval_problems=0)
