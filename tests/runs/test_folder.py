"""A run's folder and what is not its own: names, the lock, --fresh, files that are gone, settings of earlier versions."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import posttrain as pt
from posttrain.core.config import Config, to_dict
from posttrain.core.errors import UserError
from posttrain.runs.lock import held
from posttrain.runs.run import Run
from posttrain.runs.settings import check_name, made_name
from tests.runs import tiny_run

SETTINGS = json.loads(json.dumps(to_dict(Config(steps=4))))


def small(folder: Path | str, **changes: Any) -> dict[str, Any]:
    """A run of the tiny policy through the whole of the Python API."""
    plain: dict[str, Any] = {
        "env": tiny_run.Count(), "model": tiny_run.policy(), "steps": 2, "prompts": 2, "num_generations": 3,
        "eval_problems": 2, "save_every": 1, "sampling": {"max_tokens": 4}, "runs": folder, "name": "small", "lr": 3e-3,
    }  # fmt: skip
    return pt.run(**(plain | changes))


@pytest.mark.parametrize("there", ["config.json", "checkpoints/model.bin", "artifacts/mine.txt", "run.sqlite"])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_folder_that_is_not_a_run_is_left_alone(tmp_path: Path, there: str, fresh: bool) -> None:
    """A model folder has a config.json too, and anybody may have a folder named checkpoints."""
    file = tmp_path / "mine" / there
    file.parent.mkdir(parents=True)
    file.write_text('{"model_type": "llama", "steps": 3}')
    with pytest.raises(UserError, match=r"is not a run: it holds .* that no run has written; use another --name"):
        Run(tmp_path / "mine", SETTINGS, fresh=fresh)
    assert [p for p in (tmp_path / "mine").rglob("*") if p.is_file()] == [file]


def test_fresh_deletes_what_lies_behind_a_link_and_keeps_the_link(tmp_path: Path) -> None:
    """Old checkpoints on another disk must not be found by the new run."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    small(tmp_path, name="run")
    assert any((tmp_path / "disk").iterdir())
    Run(tmp_path / "run", SETTINGS, fresh=True).close()
    assert (tmp_path / "run" / "checkpoints").is_symlink() and not any((tmp_path / "disk").iterdir())


def old_run(folder: Path) -> None:
    """A folder with everything that a run and its phases write."""
    Run(folder, SETTINGS).close()
    for name in ("checkpoints/train-000001", "best/train-000001", "artifacts", "tracked", "profile"):
        (folder / name).mkdir(parents=True)
        (folder / name / "old.txt").write_text("old")
    for name in ("notes.json", "summary.json", "held_out.json", "machine.json", "config.toml"):
        (folder / name).write_text("{}")


def test_fresh_leaves_nothing_of_the_old_run(tmp_path: Path) -> None:
    old_run(tmp_path / "run")
    Run(tmp_path / "run", SETTINGS, fresh=True).close()
    there = {p.name for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert there == {".lock", "config.json", "run.sqlite", "state.json"}


def test_a_kill_in_fresh_leaves_a_run_that_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is deleted first, the settings go last: without them the rest could not be gone on with, nor told what it is."""
    left, unlink = [0], Path.unlink

    def dies(path: Path, missing_ok: bool = False) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    for moment in range(1, 11):
        folder = tmp_path / f"run{moment}"
        old_run(folder)
        left[0] = moment
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "unlink", dies)
            Run(folder, SETTINGS, fresh=True)
        assert (folder / "config.json").exists()
        shutil.rmtree(folder / "checkpoints")
        Run(folder, SETTINGS).close()


def test_fresh_does_not_go_on_with_what_it_could_not_delete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_run(tmp_path / "run")

    def refuses(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuses)
    with pytest.raises(UserError, match=r"cannot write to .*run \(Permission denied\)"):
        Run(tmp_path / "run", SETTINGS, fresh=True)


def test_a_run_whose_database_is_gone_does_not_go_on_without_its_past(tmp_path: Path) -> None:
    small(tmp_path, steps=1)
    for file in (tmp_path / "small").glob("run.sqlite*"):
        file.unlink()
    with pytest.raises(UserError, match=r"has checkpoints but no run.sqlite.*--fresh to start over"):
        small(tmp_path, steps=1)
    assert small(tmp_path, steps=1, fresh=True)["steps"] == 1


@pytest.mark.parametrize("what", ["empty", "older"])
def test_a_database_that_knows_less_than_the_checkpoint_is_not_gone_on_with(tmp_path: Path, what: str) -> None:
    small(tmp_path, steps=1, schedule="constant")
    older = (tmp_path / "small/run.sqlite").read_bytes()
    small(tmp_path, steps=2, schedule="constant")
    for file in (tmp_path / "small").glob("run.sqlite*"):
        file.unlink()
    (tmp_path / "small/run.sqlite").write_bytes(older if what == "older" else b"")
    with pytest.raises(UserError, match=r"run.sqlite of .*small has [01] steps of train, and its checkpoint 2"):
        small(tmp_path, steps=2, schedule="constant")


def test_a_process_that_copies_its_own_folder_keeps_the_lock(tmp_path: Path) -> None:
    """With a POSIX lock, closing any descriptor of the file would let go of it."""
    code = (
        "import sys; from pathlib import Path; from posttrain.runs.lock import hold\n"
        "try: hold(Path(sys.argv[1]), Path(sys.argv[1])); print('taken')\nexcept Exception as e: print(e)"
    )
    run = Run(tmp_path / "a", SETTINGS)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    (tmp_path / "a" / ".lock").read_text()
    other = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a")], capture_output=True, text=True, check=True
    )
    assert f"is being written by another process (id {os.getpid()})" in other.stdout
    assert held(tmp_path / "a") and not held(tmp_path / "copy")
    run.close()
    assert not held(tmp_path / "a")


def test_a_reward_that_changes_the_working_directory_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def wanders(prompt: Any, text: str) -> float:
        os.chdir(tmp_path / "elsewhere")
        return float(len(text))

    small("runs", reward=wanders)
    assert not any((tmp_path / "elsewhere").iterdir())
    assert (tmp_path / "runs/small/summary.json").exists() and any((tmp_path / "runs/small/checkpoints").iterdir())


@pytest.mark.parametrize("name", ["../../evil", "a/b", "..", "", "-x", "x" * 201])
def test_names_that_cannot_be_folders(name: str) -> None:
    with pytest.raises(UserError):
        check_name(name)


def test_no_method_task_or_plan_leaves_the_folder_of_runs(tmp_path: Path) -> None:
    small(tmp_path / "runs", method=pt.find_method("grpo").but(name="../../evil"), name="")
    assert [p.name for p in tmp_path.iterdir()] == ["runs"] and [p.name for p in (tmp_path / "runs").iterdir()] == [
        "evil-count"
    ]
    with pytest.raises(UserError, match="no parameter 'name' that can be typed"):
        pt.run(method="grpo(name='../../evil')", runs=tmp_path / "runs")
    with pytest.raises(UserError, match="cannot be a file name"):
        pt.run(method="rlhf-workflow", name="../../x", runs=tmp_path / "runs")
    long = made_name("grpo", "x" * 300)
    assert len(long) == 200 == len(check_name(long)) and long != made_name("grpo", "x" * 299)
    with pytest.raises(UserError, match="300"):
        small(tmp_path / "runs", name="x" * 300)


def test_settings_that_a_new_version_adds_are_no_difference(tmp_path: Path) -> None:
    small(tmp_path)
    file = tmp_path / "small" / "config.json"
    settings = json.loads(file.read_text())
    del settings["keep_best"], settings["sampling"]["min_p"], settings["inputs"]
    file.write_text(json.dumps(settings))
    for path in (tmp_path / "small" / "checkpoints").glob(
        "*/state.json"
    ):  # of that version: its fingerprint is of all settings
        from posttrain.runs.checkpoint import _digest
        from posttrain.runs.run import _fingerprint

        outer = json.loads(path.read_text())
        outer["body"]["state"]["config"] = _fingerprint(settings)
        path.write_text(json.dumps({"sha256": _digest(outer["body"]), "body": outer["body"]}))
    assert small(tmp_path)["steps"] == 2
    with pytest.raises(UserError, match=r"sampling.min_p was 0.0, is now 0.1"):
        small(tmp_path, sampling={"max_tokens": 4, "min_p": 0.1})


def test_what_is_kept_of_a_run_may_change_when_it_goes_on() -> None:
    from posttrain.runs.settings import agreed

    old = {"lr": 1e-5, "steps": 5, "log_rollouts": 8, "keep_checkpoints": 2, "inputs": {}}
    assert agreed(Path("runs/x"), old, old | {"log_rollouts": -1, "keep_checkpoints": 5}, False, True) == old
    with pytest.raises(UserError, match=r"lr was 1e-05, is now 0\.1"):
        agreed(Path("runs/x"), old, old | {"lr": 0.1}, False, True)
