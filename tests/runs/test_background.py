"""Checkpoints written beside training: what was copied is what is written, one at a time, and no error is lost."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.config import to_dict
from posttrain.core.errors import UserError
from posttrain.core.loop import Loop
from posttrain.runs import run as run_module
from posttrain.runs.background import Background
from posttrain.runs.checkpoint import listing, read
from posttrain.runs.run import Run
from posttrain.runs.tables import HostCopy, read_table, write_table
from posttrain.train import train
from tests.runs.tiny_run import build, config


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Checkpoints are written only once this is set."""
    opened = threading.Event()
    write = run_module.write

    def late(*args: Any) -> Any:
        assert opened.wait(20)
        return write(*args)

    monkeypatch.setattr(run_module, "write", late)
    return opened


def small(folder: Path, **changes: Any) -> tuple[Run, Loop]:
    settings = config(**changes)
    run = Run(folder, to_dict(settings))
    loop = build(run, settings)
    return run, loop


def test_what_is_written_is_the_state_at_the_time_of_saving(tmp_path: Path, gate: threading.Event) -> None:
    run, loop = small(tmp_path / "run")
    list(zip(range(1), loop.steps(), strict=False))
    before = {name: x.clone() for name, x in loop.policy.state_dict().items()}
    coef = loop.stateful()["shaping0"].state_dict()["coef"]
    run.save(loop, 0)
    with torch.no_grad():
        for p in loop.policy.parameters():
            p.add_(1.0)
    loop.stateful()["shaping0"].coef = 99.0
    assert not listing(run.checkpoints, "train") and run.written() == []
    gate.set()
    run.writer.wait()
    (at,) = run.written()
    ck = read(run.checkpoints / "train-000000")
    assert at == 0 and ck.state["parts"]["shaping0"]["coef"] == coef != 99.0
    assert all(ck.tables["weights"][name].equal(x) for name, x in before.items() if name in ck.tables["weights"])
    run.close()


def test_what_a_part_goes_on_changing_is_saved_as_it_was(tmp_path: Path, gate: threading.Event) -> None:
    """A part whose state_dict is its own list, which grows while the checkpoint waits to be written."""

    class Seen:
        steps: list[int] = [1, 2]

        def check(self, *_: Any) -> None: ...

        def state_dict(self) -> dict[str, Any]:
            return {"steps": self.steps}

    run, loop = small(tmp_path / "run")
    loop.monitors.append(Seen())
    list(zip(range(1), loop.steps(), strict=False))
    run.save(loop, 0)
    Seen.steps.append(3)
    gate.set()
    run.close()
    assert read(run.checkpoints / "train-000000").state["parts"]["monitor0"] == {"steps": [1, 2]}


def test_a_second_checkpoint_does_not_change_the_first_that_is_being_written(
    tmp_path: Path, gate: threading.Event
) -> None:
    """Both are copied into the same buffers, so the second is copied once the first is on the disk."""
    run, loop = small(tmp_path / "run")
    list(zip(range(1), loop.steps(), strict=False))
    before = {name: x.clone() for name, x in loop.policy.state_dict().items()}
    run.save(loop, 0)
    with torch.no_grad():
        for p in loop.policy.parameters():
            p.add_(1.0)
    threading.Timer(0.05, gate.set).start()
    run.save(loop, 1)
    run.close()
    first, second = (read(run.checkpoints / f"train-00000{i}").tables["weights"] for i in (0, 1))
    assert all(first[name].equal(x) for name, x in before.items() if name in first)
    assert not any(second[name].equal(x) for name, x in first.items())


def test_older_checkpoints_go_only_once_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`keep_checkpoints` of them are there at every moment, also while the next one is written."""
    there: list[list[int]] = []
    write = run_module.write

    def looks(folder: Path, *args: Any) -> Any:
        there.append([step for step, _ in listing(folder, "train")])
        return write(folder, *args)

    monkeypatch.setattr(run_module, "write", looks)
    run, loop = small(tmp_path / "run", steps=4, save_every=1, keep_checkpoints=2)
    train(loop)
    run.close()
    assert there == [[], [0], [1, 0], [2, 1]]
    assert [step for step, _ in listing(run.checkpoints, "train")] == [3, 2]


def test_one_at_a_time_and_closing_waits(tmp_path: Path, gate: threading.Event) -> None:
    run, loop = small(tmp_path / "run")
    list(zip(range(1), loop.steps(), strict=False))
    run.save(loop, 0)
    assert run.writer.busy
    threading.Timer(0.05, gate.set).start()
    run.save(loop, 1)  # waits for the first
    assert listing(run.checkpoints, "train")[0][0] in (0, 1)
    run.close()
    assert [step for step, _ in listing(run.checkpoints, "train")] == [1, 0]


def test_an_error_of_the_writer_ends_the_run_with_its_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise UserError("the disk is full: told by a test")

    run, loop = small(tmp_path / "run")
    monkeypatch.setattr(run_module, "write", full)
    with pytest.raises(UserError, match="the disk is full"):
        train(loop)
    assert max(step for step, _ in run.store.series("reward")) < 6  # it did not go on to its end
    run.close()


def test_a_state_too_large_to_copy_is_written_before_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "free_memory", lambda: 1000.0)
    run, loop = small(tmp_path / "run")
    list(zip(range(1), loop.steps(), strict=False))
    run.save(loop, 0)
    assert not run.copy.buffers and run.written() == [0] and listing(run.checkpoints, "train")
    run.close()


def test_half_precision_weights_are_not_written_beside_their_masters(tmp_path: Path) -> None:
    settings = config(steps=2, save_every=1)

    def halved(run: Run) -> Loop:
        loop = build(run, settings)
        policy = loop.policy.to(torch.bfloat16)  # type: ignore[attr-defined]
        again = build(run, settings)
        learner = type(loop.learner)(policy, loop.method, 0, settings.lr, 0, 1.0, 64)
        again.learners, again.source = {"policy": learner}, loop.source
        return again

    with Run(tmp_path / "run", to_dict(settings)) as run:
        loop = halved(run)
        train(loop)
        loop.finish()
        names = {n for n, _ in loop.policy.named_parameters()}
        path = run.checkpoints / "train-000001"
        assert not names & set(read_table(path / "weights.safetensors"))
        ck = read(path)
        live = loop.policy.state_dict()
        assert all(ck.tables["weights"][n].equal(live[n]) and live[n].dtype == torch.bfloat16 for n in names)
        other = halved(run)
        assert run.restore(other) == 2
        assert all(x.equal(live[n]) for n, x in other.policy.state_dict().items())


def test_copies_use_their_buffers_again_and_hold_no_others(tmp_path: Path) -> None:
    copy = HostCopy()
    first = copy({"a": {"x": torch.ones(2), "y": torch.ones(3)}})
    again = copy({"a": {"x": torch.zeros(2)}})
    assert again["a"]["x"] is first["a"]["x"] and set(copy.buffers) == {("a", "x")}


def test_every_gpu_that_is_copied_from_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the current one: a copy that is not there yet would be written, with a hash that fits."""

    class OnGpu:
        shape, dtype, is_cuda = (2,), torch.float32, True

        def __init__(self, device: str) -> None:
            self.device = torch.device(device)

    class Buffer:
        def copy_(self, x: OnGpu, non_blocking: bool) -> OnGpu:
            assert non_blocking
            return x

    waited: set[Any] = set()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.add(device))
    monkeypatch.setattr(HostCopy, "_buffer", lambda *_: Buffer())
    given: Any = {"a": {"x": OnGpu("cuda:1"), "y": OnGpu("cuda:2")}, "b": {"z": OnGpu("cuda:1")}}
    HostCopy()(given)
    assert waited == {torch.device("cuda:1"), torch.device("cuda:2")}


def test_a_table_is_read_by_the_library_as_it_was_written(tmp_path: Path) -> None:
    table = {
        "b": torch.tensor([True, False]), "one": torch.tensor(7), "half": torch.randn(3, 5).bfloat16(), "none": torch.empty(0, 4),
        "turned": torch.randn(4, 3).T, "ü": torch.randn(1 << 23),
    }  # fmt: skip
    facts = write_table(tmp_path / "x.safetensors", table)
    back = read_table(tmp_path / "x.safetensors")
    assert facts["bytes"] == (tmp_path / "x.safetensors").stat().st_size and set(back) == set(table)
    assert all(back[k].equal(x) and back[k].dtype == x.dtype for k, x in table.items())
    with pytest.raises(TypeError, match="complex"):
        write_table(tmp_path / "y.safetensors", {"z": torch.zeros(2, dtype=torch.complex64)})


def test_the_last_checkpoint_is_written_while_the_run_is_evaluated(tmp_path: Path, gate: threading.Event) -> None:
    run, loop = small(tmp_path / "run", steps=2, save_every=5)
    told: list[int] = []

    class Saved:
        def on_checkpoint(self, loop: Loop, step: int) -> None:
            told.append(step)

    loop.callbacks = [Saved()]
    train(loop)
    assert run.writer.busy and not told and not run.finished("train")
    gate.set()
    loop.finish()
    assert told == [1] and run.finished("train") and listing(run.checkpoints, "train")[0][0] == 1
    run.close()


def test_room_for_the_copy_is_made_for_a_gpu_alone() -> None:
    copy = HostCopy()
    copy.prepare({"weights": {"x": torch.arange(6.0)}})
    assert not copy.buffers and copy._making is None  # memory of the host is copied to as it is


def test_ctrl_c_while_a_write_is_waited_for_does_not_lose_it() -> None:
    """Thread.join, interrupted, takes a thread for ended that still runs; then the run would end in the middle of the write."""
    opened, done, writer = threading.Event(), [], Background()
    writer.start(lambda: done.append(opened.wait(20)))
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            writer.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert writer.busy and not done
    threading.Timer(0.1, opened.set).start()
    writer.wait()
    assert done == [True] and not writer.busy


def test_work_that_never_began_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.runs.background._STARTED", 0.01)
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    writer = Background()
    with pytest.raises(KeyboardInterrupt):
        writer.start(lambda: None)
    writer.wait()
    assert not writer.busy
