"""Rows are written beside training: in order, as they were when they were logged, and no error is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.runs import store as store_module
from posttrain.runs.store import Store
from posttrain.runs.writer import _AHEAD
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
