"""Callbacks: which events come, in which order, with what; and a run that one of them ends early stays ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import posttrain as pt
from tests.runs import tiny_run


class Told:
    """Writes down every event."""

    def __init__(self, stop_at: int = -1) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.stop_at = stop_at

    def on_begin(self, loop: Any, before: Any) -> None:
        self.events.append(("begin", before.problems))

    def on_rollouts(self, loop: Any, step: int, groups: list[pt.Group]) -> None:
        self.events.append(("rollouts", step, len(groups), sum(len(g.rollouts) for g in groups)))

    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        self.events.append(("step", step, "reward" in metrics and "seconds" in metrics and "grad_norm" in metrics))
        if step == self.stop_at:
            loop.stop("good enough")

    def on_eval(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        self.events.append(("eval", step, "accuracy" in metrics))

    def on_checkpoint(self, loop: Any, step: int) -> None:
        assert (loop.run.checkpoints / f"train-{step:06d}" / "state.json").exists()
        self.events.append(("checkpoint", step))

    def on_end(self, loop: Any, before: Any, after: Any, summary: dict[str, Any]) -> None:
        self.events.append(("end", summary["steps"]))


def run(folder: Path, told: Told, steps: int = 4) -> dict[str, Any]:
    return pt.run(
        model=tiny_run.policy(), env=tiny_run.Count(), steps=steps, prompts=2, num_generations=3, eval_problems=2,
        eval_every=2, save_every=3, schedule="constant", sampling={"max_tokens": 4}, runs=folder, name="told", callbacks=[told],
    )  # fmt: skip


def test_every_event_in_its_order(tmp_path: Path) -> None:
    told = Told()
    run(tmp_path, told)
    rolled = [("rollouts", step, 2, 6) for step in range(4)]
    stepped = [("step", step, True) for step in range(4)]
    assert [e for e in told.events if e[0] != "checkpoint"] == [
        ("begin", 2), rolled[0], stepped[0], rolled[1], ("eval", 1, True), stepped[1], rolled[2], stepped[2],
        rolled[3], ("eval", 3, True), stepped[3], ("end", 4),
    ]  # fmt: skip
    written = [e for e in told.events if e[0] == "checkpoint"]  # told once it is on the disk, which may be a step later
    assert written == [("checkpoint", 2), ("checkpoint", 3)] and told.events[-2] == written[-1]
    assert told.events.index(written[0]) > told.events.index(stepped[2])


def test_a_run_that_a_callback_ends_stays_ended_and_more_steps_go_on(tmp_path: Path, caplog: Any) -> None:
    told = Told(stop_at=1)
    summary = run(tmp_path, told)
    assert summary["stopped_early"] == "good enough"
    assert [e for e in told.events if e[0] in ("step", "checkpoint")] == [
        ("step", 0, True),
        ("step", 1, True),
        ("checkpoint", 1),
    ]
    again = Told()
    same = run(tmp_path, again)
    assert not [e for e in again.events if e[0] in ("rollouts", "step", "checkpoint")] and again.events[-1][0] == "end"
    assert same == summary and "was ended early (good enough), and stays so; more --steps" in caplog.text
    more = Told()
    summary = run(tmp_path, more, steps=5)
    assert "stopped_early" not in summary and [e[1] for e in more.events if e[0] == "step"] == [2, 3, 4]
    assert [e[1] for e in _again(tmp_path).events if e[0] == "step"] == [], "what went on is at its own end"


def _again(folder: Path) -> Told:
    told = Told()
    run(folder, told, steps=5)
    return told


def test_a_kill_after_the_last_checkpoint_of_an_ended_run_trains_no_further(tmp_path: Path) -> None:
    class Killed(Told):
        def on_checkpoint(self, loop: Any, step: int) -> None:
            if step == self.stop_at:
                raise KeyboardInterrupt  # before the run is finished

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Killed(stop_at=1))
    again = Told()
    assert run(tmp_path, again)["stopped_early"] == "good enough"
    assert not [e for e in again.events if e[0] == "step"]


def test_a_callback_may_know_one_event_only(tmp_path: Path) -> None:
    class Count:
        steps = 0

        def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
            self.steps += 1

    count = Count()
    run(tmp_path, count)  # type: ignore[arg-type]
    assert count.steps == 4
