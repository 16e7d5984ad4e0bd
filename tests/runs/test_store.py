"""The database: what is written comes back bit for bit, a step is written completely or not at all, a full disk is reported."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
from pathlib import Path

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.runs import checkpoint
from posttrain.runs.store import Store


def groups(count: int = 2, size: int = 3, reward: float = 0.5) -> list[Group]:
    made = []
    for g in range(count):
        prompt = Prompt.text(f"p{g}", f"question {g}", "42")
        rollouts = [
            Rollout.single(
                prompt, torch.tensor([1]), torch.tensor([5, 6]), torch.tensor([-0.1, -1 / 3]), torch.ones(2).bool(),
                f"answer {g}.{s}", reward=reward, rewards={"right": reward}, version=7,
            )
            for s in range(size)
        ]  # fmt: skip
        for r in rollouts:
            r.set_stream("adv", torch.tensor([0.25, -1]))
        made.append(Group(prompt, rollouts))
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "run.sqlite")


def test_metrics_come_back_bit_for_bit(store: Store) -> None:
    """0.1 + 0.2 needs all 53 bits; NaN is NULL in SQLite and must be NaN again; infinities stay (-0.0 would be 0.0)."""
    values = {"a": 0.1 + 0.2, "b": math.nan, "c": math.inf, "d": -1e-300, "e": 5e-324}
    store.log("train", 3, values, [], 1.5)
    back = {r["name"]: r["value"] for r in store.metrics()}
    assert {k: v.hex() for k, v in back.items()} == {k: v.hex() for k, v in values.items()}
    assert store.series("a") == [(3, 0.1 + 0.2)]


def test_seconds_are_kept_apart(store: Store) -> None:
    """Wall-clock time differs between equal runs, so no table that is compared may hold it."""
    store.log("train", 0, {"loss": 1.0, "reward/seconds": 9.0}, [], 2.0)
    assert [r["name"] for r in store.metrics()] == ["loss"]
    assert store.series("seconds") == [(0, 2.0)] and store.series("reward/seconds") == [(0, 9.0)]


def test_order_is_phases_as_they_began_then_steps(store: Store) -> None:
    for phase, step in (("sft", 0), ("sft", 1), ("a-later-phase", 0)):
        store.log(phase, step, {"loss": float(step)}, [], 0.0)
    assert [(r["phase"], r["step"]) for r in store.metrics()] == [("sft", 0), ("sft", 1), ("a-later-phase", 0)]
    assert store.phases() == ["sft", "a-later-phase"]
    assert store.series("loss", phase="sft") == [(0, 0.0), (1, 1.0)]


def test_rollouts_come_back_with_tokens_and_credit(store: Store) -> None:
    store.log("train", 4, {}, groups(), 0.0)
    row = store.rollouts(step=4)[4]  # second group (3 rollouts each), second sample
    assert (row["group_index"], row["sample_index"], row["prompt_id"], row["text"]) == (1, 1, "p1", "answer 1.1")
    assert row["tokens"] == [5, 6] and row["adv"] == [0.25, -1.0] and row["mask"] == [1, 1]
    assert torch.equal(torch.tensor(row["logp"]), torch.tensor([-0.1, -1 / 3]))
    assert row["rewards"] == {"right": 0.5} and row["version"] == 7
    assert store.rollouts(step=5) == []


@pytest.mark.parametrize(("limit", "stored"), [(-1, 6), (0, 0), (4, 4), (100, 6)])
def test_limit_of_rollouts(store: Store, limit: int, stored: int) -> None:
    store.log("train", 0, {}, groups(2, 3), 0.0, limit)
    rows = store.rollouts()
    assert len(rows) == stored
    assert [(r["group_index"], r["sample_index"]) for r in rows[:4]] == [(0, 0), (0, 1), (0, 2), (1, 0)][:stored]


def test_failed_rewards_and_skipped_updates_are_events(store: Store) -> None:
    """skipped is a running count: 0, 2, 2 means that two updates were skipped at step 1 and none at step 2."""
    store.log("train", 0, {"skipped": 0.0}, groups(1, 3, math.nan), 0.0)
    for step, skipped in ((1, 2.0), (2, 2.0)):
        store.log("train", step, {"skipped": skipped}, groups(), 0.0)
    assert [(e["step"], e["kind"]) for e in store.events()] == [(0, "failed reward"), (1, "skipped update")]
    assert store.rollouts(step=0)[0]["failed"] == 1 and store.rollouts(step=0)[0]["reward"] is None


def test_forget_takes_the_step_and_all_later_ones_of_that_phase(store: Store) -> None:
    for phase in ("sft", "rl"):
        for step in range(3):
            store.log(phase, step, {"loss": 1.0}, groups(), 1.0)
            store.event(phase, step, "note", "")
    store.forget("rl", 1)
    left = [("sft", 0), ("sft", 1), ("sft", 2), ("rl", 0)]
    for rows in (store.metrics(), store.times(), store.events()):
        assert sorted((r["phase"], r["step"]) for r in rows) == sorted(left)
    assert len(store.rollouts()) == 6 * len(left)


def test_a_step_is_written_whole_or_not_at_all(store: Store) -> None:
    """The same step twice breaks the primary key; nothing of the second transaction may stay."""
    store.log("train", 0, {"loss": 1.0}, [], 1.0)
    with pytest.raises(sqlite3.IntegrityError):
        store.log("train", 0, {"new": 1.0, "loss": 1.0}, groups(), 1.0)
    assert [r["name"] for r in store.metrics()] == ["loss"] and store.rollouts() == []


def test_full_disk_is_one_sentence(store: Store) -> None:
    """max_page_count makes SQLite itself say `database or disk is full`."""
    store.log("train", 0, {"loss": 1.0}, [], 1.0)
    pages = store.db.execute("PRAGMA page_count").fetchone()[0]
    store.db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UserError, match=r"disk is full.*same command again"):
        for step in range(1, 100):
            store.log("train", step, {"loss": 1.0}, groups(4, 8), 1.0)
    assert store.series("loss")[0] == (0, 1.0)


@pytest.mark.parametrize(("free", "told"), [(4096, "disk is full"), (1 << 30, "disk I/O error")])
def test_an_io_error_is_a_full_disk_only_where_there_is_no_room(
    store: Store, monkeypatch: pytest.MonkeyPatch, free: int, told: str
) -> None:
    """SQLite calls it an I/O error when there is no room for its shared memory."""
    monkeypatch.setattr(checkpoint, "free_space", lambda folder: free)
    with pytest.raises((UserError, sqlite3.OperationalError), match=told), store._errors():
        raise sqlite3.OperationalError("disk I/O error")


def test_a_live_run_can_be_read_and_readers_change_nothing(store: Store) -> None:
    store.log("train", 0, {"loss": 1.0}, [], 1.0)
    reader = Store(store.path, readonly=True)
    store.log("train", 1, {"loss": 2.0}, [], 1.0)
    assert reader.series("loss") == [(0, 1.0), (1, 2.0)]
    with pytest.raises(UserError, match="cannot write"):
        reader.log("train", 2, {"loss": 3.0}, [], 1.0)


def test_no_database_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run in"):
        Store(tmp_path / "run.sqlite", readonly=True)
    (tmp_path / "run.sqlite").write_text("this is not a database at all" * 50)
    with pytest.raises(UserError, match="damaged"):
        Store(tmp_path / "run.sqlite")


def test_export(store: Store, tmp_path: Path) -> None:
    store.log("train", 0, {"loss": 0.1 + 0.2}, groups(), 1.0)
    store.export(tmp_path / "out", "csv")
    with open(tmp_path / "out" / "metrics.csv") as file:
        row = next(csv.DictReader(file))
    assert row == {"phase": "train", "step": "0", "name": "loss", "value": "0.30000000000000004"}
    store.export(tmp_path / "out", "jsonl")
    lines = (tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()
    assert len(lines) == 6 and json.loads(lines[0])["tokens"] == [5, 6]
    parquet = pytest.importorskip("pyarrow.parquet")
    paths = store.export(tmp_path / "out", "parquet")
    assert parquet.read_table(tmp_path / "out" / "metrics.parquet").to_pylist()[0]["value"] == 0.1 + 0.2
    assert [p.name for p in paths] == ["metrics.parquet", "times.parquet", "rollouts.parquet", "events.parquet"]
    with pytest.raises(UserError, match="did you mean 'parquet'"):
        store.export(tmp_path, "parket")
