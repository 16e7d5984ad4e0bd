"""Rows are written beside training: in order, as they were when they were logged, and no error is lost."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.config import to_dict
from posttrain.core.errors import UserError
from posttrain.runs import store as store_module
from posttrain.runs.checkpoint import listing
from posttrain.runs.run import Run
from posttrain.runs.store import Store
from posttrain.runs.writer import _AHEAD
from tests.runs import tiny_run
from tests.runs.test_store import groups


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Rollouts are written only once this is set."""
    opened, insert = threading.Event(), store_module.insert

    def late(*args: Any) -> Any:
        assert opened.wait(20)
        return insert(*args)

    monkeypatch.setattr(store_module, "insert", late)
    return opened


def test_a_step_does_not_wait_and_is_written_as_it_was_when_logged(tmp_path: Path, gate: threading.Event) -> None:
    with Store(tmp_path / "run.sqlite", background=True) as store:
        some = groups(1, 2)
        store.log("train", 0, {"loss": 1.0}, some, 1.0)
        for r in some[0].rollouts:  # what a replay memory or a later step may do to a rollout that it keeps
            r.set_stream("adv", torch.tensor([9.0, 9.0]))
            r.reward, r.rewards["right"] = 0.0, 0.0
            r.turns[0].text = "another"
        store.event("train", 0, "note", "after the step")
        assert not gate.is_set()
        gate.set()
        row = store.rollouts()[0]  # readers of the same store see what is on its way
        assert row["adv"] == [0.25, -1.0] and row["reward"] == 0.5 and row["rewards"] == {"right": 0.5}
        assert row["text"] == "answer 0.0" and store.events()[0]["message"] == "after the step"


def test_metrics_are_written_as_they_were_when_logged(tmp_path: Path, gate: threading.Event) -> None:
    with Store(tmp_path / "run.sqlite", background=True) as store:
        store.log("train", 0, {"loss": 1.0}, groups(1, 2), 1.0)  # holds the thread up
        metrics = {"loss": 2.0}
        store.log("train", 1, metrics, [], 1.0)
        metrics["loss"] = 9.0
        gate.set()
        assert store.series("loss") == [(0, 1.0), (1, 2.0)]


def test_the_queue_is_bounded(tmp_path: Path, gate: threading.Event) -> None:
    """A disk that is too slow holds the steps up instead of filling the memory."""
    with Store(tmp_path / "run.sqlite", background=True) as store:
        for step in range(_AHEAD):
            store.log("train", step, {}, groups(), 1.0)
        more = threading.Thread(target=lambda: store.log("train", _AHEAD, {}, groups(), 1.0))
        more.start()
        more.join(0.1)
        assert more.is_alive()
        gate.set()
        more.join(20)
        assert sorted(store.made("train")) == list(range(_AHEAD + 1))


def full(store: Store) -> None:
    """From now on SQLite itself says that there is no room."""
    pages = store._write_db.execute("PRAGMA page_count").fetchone()[0]
    store._write_db.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_is_the_same_sentence_at_the_next_call(tmp_path: Path) -> None:
    store = Store(tmp_path / "run.sqlite", background=True)
    store.log("train", 0, {"loss": 1.0}, [], 1.0)
    store.sync()
    full(store)
    with pytest.raises(UserError, match=r"disk is full.*same command again"):
        for step in range(1, 100):
            store.log("train", step, {"loss": 1.0}, groups(4, 8), 1.0)
    with pytest.raises(UserError, match="disk is full"):
        store.sync()  # and no checkpoint after it
    store.close()  # it has been told
    with Store(store.path, readonly=True) as reader:
        steps = [step for step, _ in reader.series("loss")]
        assert steps == list(range(len(steps))) and len(reader.rollouts()) == 32 * (len(steps) - 1)


def test_an_error_that_nobody_was_told_of_comes_out_at_the_end(tmp_path: Path) -> None:
    store = Store(tmp_path / "run.sqlite", background=True)
    store.log("train", 0, {"loss": 1.0}, [], 1.0)
    store.sync()
    full(store)
    store.log("train", 1, {"loss": 1.0}, groups(40, 8), 1.0)
    with pytest.raises(UserError, match="disk is full"):
        store.close()


def test_after_an_error_no_later_step_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows end where the error was: a hole in them would look like a run that measured nothing there."""
    insert = store_module.insert

    def fails_once(db: Any, record: Any) -> Any:
        if record.step == 1:
            release.wait(20)
            raise UserError("told by a test")
        return insert(db, record)

    release = threading.Event()
    monkeypatch.setattr(store_module, "insert", fails_once)
    store = Store(tmp_path / "run.sqlite", background=True)
    for step in range(4):
        store.log("train", step, {"loss": 1.0}, groups(), 1.0)
    release.set()
    with pytest.raises(UserError, match="told by a test"):
        store.close()
    with Store(store.path, readonly=True) as reader:
        assert [step for step, _ in reader.series("loss")] == [0]


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="this system has fsync only")
def test_rows_are_on_the_disk_also_while_somebody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader keeps SQLite from moving its log into the database, and then it does not flush the log either."""
    flushed: list[int] = []
    fdatasync = os.fdatasync

    def seen(fd: int) -> None:
        fdatasync(fd)
        flushed.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fdatasync", seen)
    path = tmp_path / "run.sqlite"
    with Store(path, background=True) as store:
        store.sync()
        reader = sqlite3.connect(path)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM metrics").fetchall()
        flushed.clear()
        store.log("train", 0, {"loss": 1.0}, groups(1, 2), 1.0)
        store.sync()
        assert flushed == [(tmp_path / "run.sqlite-wal").stat().st_ino]
        reader.close()


def test_sync_may_be_called_by_another_thread(tmp_path: Path) -> None:
    with Store(tmp_path / "run.sqlite", background=True) as store:
        store.log("train", 0, {"loss": 1.0}, groups(), 1.0)
        there: list[int] = []

        def save() -> None:
            store.sync()
            with Store(store.path, readonly=True) as reader:
                there.append(len(reader.rollouts()))

        thread = threading.Thread(target=save)
        thread.start()
        thread.join(20)
        assert there == [6]


def test_no_checkpoint_is_written_before_the_rows_that_led_to_it(tmp_path: Path, gate: threading.Event) -> None:
    settings = tiny_run.config()
    with Run(tmp_path / "run", to_dict(settings)) as run:
        loop = tiny_run.build(run, settings)
        assert next(iter(loop.steps())) == 0
        run.log("train", 0, {"loss": 1.0}, groups(), 1.0)
        run.save(loop, 0)
        assert run.writer.thread is not None
        run.writer.thread.join(0.2)
        assert run.writer.busy and not listing(run.checkpoints, "train")
        gate.set()
        run.writer.wait()
        assert [step for step, _ in listing(run.checkpoints, "train")] == [0]
