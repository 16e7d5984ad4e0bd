"""Opportunistic sampling: no answer is older than asked, none is lost or trained on twice, late shards join the next step."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.distributed import choose
from posttrain.runs.run import Run
from tests.distributed import small
from tests.distributed.test_lag import Nursery, nursery
from tests.distributed.test_workers import files

__all__ = ["files", "nursery"]


def rows(folder: Path) -> list[Any]:
    with Run.open(folder) as run:
        return list(run.store.rollouts())


def whole(folder: Path, most: int, steps: int) -> None:
    """Every prompt of the run once, four answers each, by weights that are at most so old and never of the future."""
    found = rows(folder)
    assert Counter(r["step"] for r in found) == {k: 16 for k in range(steps)}
    assert all(0 <= r["step"] - r["version"] <= most for r in found), {(r["step"], r["version"]) for r in found}
    assert set(Counter(r["prompt_id"] for r in found).values()) == {4}


class Late(small.Inside):
    """A worker whose first shard is late: another could have made all of steps 0 and 1 by then, so that step 1 must wait for it."""

    made = 0
    every: list[small.Inside] = []

    def __init__(self, setup: bytes, index: int) -> None:
        super().__init__(setup, index)
        Late.every.append(self)

    def ask(self, message: bytes, timeout: float) -> bytes:
        reply = super().ask(message, timeout)
        Late.made += 1
        first = self.index == 0 and not hasattr(self, "waited")
        while first and Late.made < 10:
            time.sleep(0.005)
        self.waited = True
        return reply


def test_late_shards_join_the_next_step(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(choose, "Process", Late)
    small.start(files, tmp_path, sampler="process", rollout_workers=2, max_staleness=1, shards=4, steps=6)
    whole(tmp_path / "small", 1, 6)
    assert "cannot be repeated to the bit; --lag 1 can" in capfd.readouterr().err
    versions = {(r["step"], r["version"]) for r in rows(tmp_path / "small")}
    assert any(step > version for step, version in versions)
    assert len(Late.every) == 2 and all(one.killed and not one.busy.locked() for one in Late.every), (
        "they end with the run"
    )


def test_a_kill_loses_no_prompt_and_repeats_none(nursery: Nursery, files: Path, tmp_path: Path) -> None:
    how = {"files": str(files), "sampler": "process", "max_staleness": 2, "shards": 4, "steps": 6}
    for at in (30, 60):
        assert nursery.run(tmp_path / "run", at, **how) == -9
    assert nursery.run(tmp_path / "run", **how) == 0
    whole(tmp_path / "run/small", 2, 6)


def test_it_needs_workers_and_no_lag(files: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="add --sampler process"):
        small.start(files, tmp_path, max_staleness=1)
    with pytest.raises(UserError, match="use one of the two"):
        small.start(files, tmp_path, max_staleness=1, lag=1, sampler="process")
