"""Checkpoints: bit-exact, complete or not there, damage found and passed over, a full disk survived."""

from __future__ import annotations

import ast
import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import posttrain
from posttrain.core.errors import UserError
from posttrain.runs import checkpoint
from posttrain.runs.checkpoint import Checkpoint, listing, newest, prune, read, sweep, write, write_atomic


def saved(step: int, phase: str = "train", value: float = 1.0) -> Checkpoint:
    weights = {
        "w": torch.full((3, 2), value),
        "half": torch.tensor([1 / 3], dtype=torch.bfloat16),
        "i": torch.tensor(2**60),
    }
    return Checkpoint(phase, step, {"weights": weights, "optimiser": {}}, {"updates": step})


def test_round_trip_is_bit_exact(tmp_path: Path) -> None:
    odd = torch.tensor([math.nan, -0.0, math.inf, 5e-324], dtype=torch.float64)
    ck = saved(3)
    ck.tables["optimiser"] = {"w|exp_avg": odd}
    ck.state = {"coef": 0.1 + 0.2, "seen": [1, None, "x", True], "nan": math.nan, "counts": torch.tensor([1, 2, 3])}
    back = read(write(tmp_path, ck))
    assert back.step == 3 and back.phase == "train" and set(back.tables) == {"weights", "optimiser"}
    for name, table in ck.tables.items():
        for key, x in table.items():
            y = back.tables[name][key]
            assert x.dtype == y.dtype and x.view(torch.uint8).equal(y.view(torch.uint8)) if x.dim() else x.equal(y)
    assert back.state["coef"] == 0.1 + 0.2 and back.state["seen"] == [1, None, "x", True]
    assert math.isnan(back.state["nan"]) and back.state["counts"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("state", [{"counts": {3: 1}}, {"seen": {1, 2}}])
def test_state_that_json_would_change_is_refused(tmp_path: Path, state: dict) -> None:
    """json turns the key 3 into "3": a curriculum would silently forget what it counted."""
    ck = saved(0)
    ck.state = state
    with pytest.raises(TypeError, match="state_dict"):
        write(tmp_path, ck)


def _truncate(path: Path) -> None:
    data = (path / "weights.safetensors").read_bytes()
    (path / "weights.safetensors").write_bytes(data[: len(data) // 2])


def _flip(path: Path) -> None:
    data = bytearray((path / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "weights.safetensors").write_bytes(bytes(data))


def _lose(path: Path) -> None:
    (path / "weights.safetensors").unlink()


def _break_json(path: Path) -> None:
    text = (path / "state.json").read_text()
    (path / "state.json").write_text(text[:-20])


def _change_json(path: Path) -> None:
    text = (path / "state.json").read_text()
    (path / "state.json").write_text(text.replace('"updates": 5', '"updates": 6'))


def _empty_json(path: Path) -> None:
    (path / "state.json").write_text("")


def _other_json(path: Path) -> None:
    (path / "state.json").write_text("[1, 2]")


DAMAGE = [_truncate, _flip, _lose, _break_json, _change_json, _empty_json, _other_json]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, saved(3, value=3.0))
    damage(write(tmp_path, saved(5, value=5.0)))
    found = newest(tmp_path, "train")
    assert found is not None and found.step == 3 and found.tables["weights"]["w"][0, 0] == 3.0
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1 and "train-000005 is damaged" in told[0]


def test_files_that_another_process_found_intact_are_not_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sizes are looked at all the same."""
    path = write(tmp_path, saved(1))
    monkeypatch.setattr(checkpoint, "intact", lambda *_: pytest.fail("hashed"))
    assert torch.equal(read(path, hashed=False).tables["weights"]["i"], saved(1).tables["weights"]["i"])
    with pytest.raises(pytest.fail.Exception):
        read(path)
    _truncate(path)
    with pytest.raises(checkpoint.Damaged, match="bytes"):
        read(path, hashed=False)


def test_all_damaged_is_an_error_and_none_at_all_is_not(tmp_path: Path) -> None:
    assert newest(tmp_path, "train") is None
    _flip(write(tmp_path, saved(5)))
    with pytest.raises(UserError, match=r"all 1 checkpoints of phase 'train'.*--fresh"):
        newest(tmp_path, "train")


def test_phases_are_told_apart_even_when_one_name_begins_with_the_other(tmp_path: Path) -> None:
    for phase, step in (("rl", 1), ("rl-2", 7), ("rl.1", 9)):
        write(tmp_path, saved(step, phase))
    assert [step for step, _ in listing(tmp_path, "rl")] == [1]
    found = newest(tmp_path, "rl-2")
    assert found is not None and found.step == 7


def test_prune_keeps_the_newest_of_its_phase(tmp_path: Path) -> None:
    write(tmp_path, saved(1, "sft"))
    for step in (9, 99, 100, 1000000):  # sorted as numbers, not as text
        write(tmp_path, saved(step))
    prune(tmp_path, "train", 1000000, 2)
    assert [s for s, _ in listing(tmp_path, "train")] == [1000000, 100]
    assert [s for s, _ in listing(tmp_path, "sft")] == [1]


def test_a_checkpoint_that_is_being_removed_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two of its files must not leave one that has its name and lacks a file."""
    for step in (1, 2):
        write(tmp_path, saved(step))
    seen = []
    rmtree = checkpoint.shutil.rmtree

    def looks(path: Path, ignore_errors: bool = False) -> None:
        seen.append([step for step, _ in listing(tmp_path, "train")])
        rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(checkpoint.shutil, "rmtree", looks)
    prune(tmp_path, "train", 2, keep=1)
    assert seen[-1] == [2] == [step for step, _ in listing(tmp_path, "train")]


def test_prune_drops_damaged_ones_that_lie_ahead(tmp_path: Path) -> None:
    """Resumed from 1 because 5 and 7 were damaged, the run saves 3: with select=1 the good one must stay."""
    for step in (1, 5, 7):
        write(tmp_path, saved(step))
    write(tmp_path, saved(3))
    prune(tmp_path, "train", 3, 1)
    assert [s for s, _ in listing(tmp_path, "train")] == [3]


def test_a_damaged_one_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    _flip(write(tmp_path, saved(5, value=1.0)))
    write(tmp_path, saved(5, value=2.0))
    found = newest(tmp_path, "train")
    assert found is not None and found.tables["weights"]["w"][0, 0] == 2.0


@pytest.mark.parametrize("point", ["write_table", "fsync", "rename"])
def test_full_disk_keeps_the_last_good_one_and_leaves_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    write(tmp_path, saved(3))

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint if point == "write_table" else os, point, full)
        with pytest.raises(UserError, match=r"disk is full: about 34 bytes .* are free.*same command"):
            write(tmp_path, saved(5))  # 6 floats of 4 bytes, one of 2, one integer of 8
    assert [p.name for p in tmp_path.iterdir()] == ["train-000003"]
    assert read(tmp_path / "train-000003").step == 3


def test_an_error_that_is_not_the_disks_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="I/O error"):
        write(tmp_path, saved(5))


def test_what_a_kill_leaves_behind_is_never_loaded_and_swept(tmp_path: Path) -> None:
    write(tmp_path, saved(1))
    os.rename(write(tmp_path, saved(5)), tmp_path / ".tmp-train-000005")
    os.rename(write(tmp_path, saved(3)), tmp_path / ".old-train-000003")
    found = newest(tmp_path, "train")
    assert found is not None and found.step == 1
    sweep(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["train-000001"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the names of open files are read from /proc")
def test_everything_is_flushed_before_the_rename_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut keeps what was flushed: files and their folder before they get their name, then the folder above; and the one
    that has the name is whole from its first moment on."""
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def flushed(fd: int) -> None:
        fsync(fd)
        done.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))

    def renamed(a: Path, b: Path) -> None:
        rename(a, b)
        done.append(f"rename {b.name}")
        if b.name == "train-000003":
            assert read(b).step == 3

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    write(tmp_path, saved(3))
    at = done.index("rename train-000003")
    files = {f".tmp-train-000003/{p.name}" for p in (tmp_path / "train-000003").iterdir()}
    assert len(files) >= 3 and set(done[: at - 1]) == files  # state.json among them, each once they were written
    assert done[at - 2 :] == [".tmp-train-000003/state.json", ".tmp-train-000003", "rename train-000003", "."]
    done.clear()
    write_atomic(tmp_path / "some.json", "{}")
    assert done == [".tmp-some.json", "."]


def test_a_small_file_is_the_old_one_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomic(tmp_path / "some.json", "old")
    replace = os.replace

    def looks(a: Path, b: Path) -> None:
        assert (a.read_text(), b.read_text()) == ("new", "old")
        replace(a, b)

    monkeypatch.setattr(os, "replace", looks)
    write_atomic(tmp_path / "some.json", "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("some.json", "new")]


def test_a_newer_format_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, saved(1)) / "state.json"
    body = json.loads(path.read_text())["body"] | {"format": checkpoint.FORMAT + 1}
    path.write_text(json.dumps({"sha256": checkpoint._digest(body), "body": body}))
    with pytest.raises(UserError, match="upgrade posttrain"):
        newest(tmp_path, "train")


def test_nothing_in_the_package_unpickles() -> None:
    """Loading a checkpoint or a data file runs no code from it: pickle and torch.load appear nowhere."""
    for path in Path(posttrain.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "dill", "cloudpickle", "joblib", "shelve"} & {n.split(".")[0] for n in names}, (
                    path
                )
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("torch", "load"), path
