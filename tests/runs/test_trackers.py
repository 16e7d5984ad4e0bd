"""Trackers: what a dashboard reads back is what the run measured; none of them can end a run.

TensorBoard is the real one. The others were tried with the real packages (wandb 0.31 offline, mlflow 3.17 on SQLite, trackio 0.43);
here objects with their interface stand for them.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from posttrain.core.config import to_dict
from posttrain.core.errors import UserError
from posttrain.runs import trackers
from posttrain.runs.run import Run
from posttrain.runs.trackers import Track
from posttrain.train import train
from tests.runs import tiny_run


class Stop:
    """As if the process had been killed after a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        if step == self.at:
            raise KeyboardInterrupt


def tracked(folder: Path, names: str, stop_at: int = -1, fresh: bool = False) -> Track:
    """A run of six steps, saved every two, that may be stopped after one of them."""
    settings = tiny_run.config(steps=6)
    with Run(folder, to_dict(settings), fresh=fresh) as run:
        loop, track = tiny_run.build(run, settings), Track(names)
        loop.callbacks = [track, Stop(stop_at)]
        try:
            train(loop)
        except KeyboardInterrupt:
            pass
        finally:
            track.close()
    return track


def test_tensorboard_reads_back_what_was_measured_also_after_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracked(tmp_path / "run", "tensorboard", stop_at=3)  # the last checkpoint is after step 1: 2 and 3 are done again
    tracked(tmp_path / "run", "tensorboard")
    events = accumulator.EventAccumulator(str(tmp_path / "run/tracked/tensorboard"))
    events.Reload()
    with Run.open(tmp_path / "run") as run:
        for name in ("reward", "kl", "grad_norm", "entropy", "lr", "seconds", "training/seconds"):
            seen = [(e.step, e.value) for e in events.Scalars(name)]
            assert seen == [(s, pytest.approx(v, rel=1e-6)) for s, v in run.store.series(name)], name
    assert "settings/text_summary" in events.Tags()["tensors"]
    tracked(tmp_path / "run", "tensorboard", stop_at=0, fresh=True)
    assert len(list((tmp_path / "run/tracked/tensorboard").iterdir())) == 1


class FakeRun:
    def __init__(self, book: Book, how: dict[str, Any]) -> None:
        self.book, self.how = book, how

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.book.rows.append((self.how["id"], step, metrics["reward"]) if "reward" in metrics else ("", step, 0.0))

    def finish(self) -> None:
        self.book.ended += 1


class Book:
    """What wandb was called with."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, float]] = []
        self.begun: list[dict[str, Any]] = []
        self.ended = 0

    def init(self, **how: Any) -> FakeRun:
        self.begun.append(how)
        return FakeRun(self, how)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Book:
    book, module = Book(), ModuleType("wandb")
    module.init, module.Settings = book.init, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(trackers, "find_spec", lambda name: SimpleNamespace(origin=name))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nowhere")
    return book


def test_a_resumed_run_goes_on_in_the_same_tracked_run_and_a_fresh_one_does_not(tmp_path: Path, wandb: Book) -> None:
    tracked(tmp_path / "run", "wandb", stop_at=3)
    tracked(tmp_path / "run", "wandb")
    assert [step for _, step, _ in wandb.rows] == [0, 1, 2, 3, 2, 3, 4, 5] and wandb.ended == 2
    assert wandb.rows[2:4] == wandb.rows[4:6]  # done again with the same values
    assert len({how["id"] for how in wandb.begun}) == 1
    assert (
        wandb.begun[0]["mode"] == "offline"
        and wandb.begun[0]["resume"] == "allow"
        and wandb.begun[0]["config"]["lr"] == 3e-3
    )
    tracked(tmp_path / "run", "wandb", stop_at=0, fresh=True)
    assert len({how["id"] for how in wandb.begun}) == 2


def test_a_tracker_that_fails_is_told_once_and_the_run_goes_on(
    tmp_path: Path, wandb: Book, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(self: FakeRun, metrics: dict[str, float], step: int) -> None:
        print("hello from a dashboard")
        if step == 2:
            raise ConnectionError("no route\nto host")

    monkeypatch.setattr(FakeRun, "log", breaks)
    track = tracked(tmp_path / "run", "wandb, tensorboard")
    told = capsys.readouterr()
    assert track.lost == {"wandb"} and told.err.count("wandb failed (ConnectionError: no route to host)") == 1
    assert told.out == ""  # stdout belongs to --json
    with Run.open(tmp_path / "run") as run:
        assert len(run.store.series("reward")) == 6


def test_names_and_missing_packages_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no tracker named 'wanbd'; did you mean 'wandb'"):
        Track("tensorboard, wanbd")
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'needs the package mlflow.*pip install "posttrain\[mlflow\]"'):
        Track("mlflow")


def test_phases_of_a_plan_follow_one_another(tmp_path: Path, wandb: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of supervised learning, then four of reinforcement; the second begins at 3, after a restart too."""
    from posttrain.core.plan import Phase, Plan
    from posttrain.runs import plans

    monkeypatch.setattr(plans, "load_policy", lambda settings: tiny_run.policy(settings.seed))
    parts = (
        Phase("sft", tiny_run.supervised(), 3, lambda context: tiny_run.Count()),
        Phase("rl", tiny_run.method(), 4, lambda context: tiny_run.Count()),
    )
    sent: list[tuple[int, str]] = []
    monkeypatch.setattr(
        FakeRun, "log", lambda self, m, step: sent.append((step, next(k for k in m if k.endswith("reward"))))
    )
    for stop in (2, -1):
        track = Track("wandb")
        with suppress(KeyboardInterrupt):
            plans.run_plan(Plan(parts, "p"), tiny_run.config(name="p"), tmp_path, callbacks=(track, StopIn("rl", stop)))
    assert [s for s, _ in sent] == [0, 1, 2, 3, 4, 5, 5, 6] and {k for _, k in sent} == {"sft/reward", "rl/reward"}


class StopIn(Stop):
    def __init__(self, phase: str, at: int) -> None:
        super().__init__(at)
        self.phase = phase

    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        if loop.phase == self.phase:
            super().on_step(loop, step, metrics)
