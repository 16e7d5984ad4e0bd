"""The folder of a run: settings that must not change, one writer, artifacts, and what the loop does with it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.config import to_dict
from posttrain.core.errors import UserError
from posttrain.core.loop import Loop
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import Part
from posttrain.losses.policy.ppo import ppo
from posttrain.runs.checkpoint import listing
from posttrain.runs.run import Run
from posttrain.train import train
from tests.runs import tiny_run

CONFIG = {"lr": 0.1, "sampling": {"top_p": 1.0, "max_tokens": 8}, "steps": 5}


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    Run(tmp_path / "a", CONFIG).close()
    Run(tmp_path / "a", CONFIG).close()  # the same again: resumes
    other = {"lr": 0.2, "sampling": {"top_p": 0.9, "max_tokens": 8}, "steps": 5, "new": 1}
    with pytest.raises(UserError) as told:
        Run(tmp_path / "a", other)
    for part in (
        "lr was 0.1, is now 0.2",
        "sampling.top_p was 1.0, is now 0.9",
        "new was not set, is now 1",
        "--name",
        "--fresh",
    ):
        assert part in str(told.value)
    assert "steps" not in str(told.value)
    Run(tmp_path / "a", CONFIG).close()  # the refusal let the lock go and changed nothing


def test_fresh_starts_over_and_leaves_other_files_alone(tmp_path: Path) -> None:
    with Run(tmp_path, CONFIG) as run:
        run.log("train", 0, {"loss": 1.0}, [], 1.0)
        run.write_artifact("pairs", [{"a": 1}])
        run.finish("train")
    (tmp_path / "my-notes.txt").write_text("mine")
    with Run(tmp_path, CONFIG | {"lr": 9.0}, fresh=True) as run:
        assert run.store.metrics() == [] and not run.finished("train") and not run.artifact("pairs").exists()
    assert Run.open(tmp_path).config["lr"] == 9.0 and (tmp_path / "my-notes.txt").read_text() == "mine"


def test_readers_need_a_run_and_do_not_hold_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run in"):
        Run.open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with Run(tmp_path / "a", CONFIG) as run:
        run.log("train", 0, {"loss": 1.0}, [], 1.0)
        run.store.sync()  # rows are written beside training; other processes see them a moment later
        reader = Run.open(tmp_path / "a")
        assert reader.store.series("loss") == [(0, 1.0)] and reader.config == CONFIG
        reader.close()
        run.log("train", 1, {"loss": 1.0}, [], 1.0)


def test_artifacts_summary_and_notes(tmp_path: Path) -> None:
    with Run(tmp_path, CONFIG) as run:
        rows = [{"chosen": "a\nb\u2028c", "margin": 0.1 + 0.2}, {"chosen": "ü"}]
        run.write_artifact("pairs", rows)
        assert run.read_artifact("pairs") == rows and run.artifact("pairs").name == "pairs.jsonl"
        with pytest.raises(UserError, match=r"no phase has written labels.jsonl yet; there are: pairs.jsonl"):
            run.read_artifact("labels")
        with pytest.raises(UserError, match="file name"):
            run.write_artifact("../../escape", rows)
        run.write_summary({"accuracy": math.nan, "by": [1.0, math.inf]})
        assert json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail) == {
            "accuracy": None,
            "by": [1.0, None],
        }
        assert run.read_notes() == {}
        run.write_notes({"kl": 0.1})
        assert run.read_notes() == {"kl": 0.1}


# ---- one writer


def _holder(folder: Path, body: str) -> subprocess.Popen[str]:
    begin = f"import os, time\nfrom posttrain.runs.run import Run\nrun = Run({str(folder)!r}, {CONFIG!r})"
    code = f"{begin}\n{body}\ntime.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    return holder


def test_a_second_writer_is_refused_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    """The holder forks a child that lives on, as a reward worker would: it must not keep the lock."""
    holder = _holder(tmp_path, "child = os.fork()\nif child: print(child, flush=True)")
    child = int(holder.stdout.readline())  # type: ignore[union-attr]
    try:
        with pytest.raises(UserError, match=rf"being written by another process \(id {holder.pid}\)"):
            Run(tmp_path, CONFIG)
        assert Run.open(tmp_path).config == CONFIG
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.kill(child, 0)  # still alive
        Run(tmp_path, CONFIG).close()
    finally:
        holder.kill()
        os.kill(child, signal.SIGKILL)


def test_one_process_cannot_write_a_run_twice_but_a_forgotten_one_lets_go(tmp_path: Path) -> None:
    run = Run(tmp_path, CONFIG)
    with pytest.raises(UserError, match="already open for writing in this process"):
        Run(tmp_path, CONFIG)
    del run
    Run(tmp_path, CONFIG).close()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write to .*Not a directory"):
        Run(tmp_path / "file" / "run", CONFIG)
    if os.getuid() == 0:
        pytest.skip("root may write anywhere, so the read-only half cannot be tried")
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UserError, match=r"cannot write to .*Permission denied"):
        Run(tmp_path / "locked" / "run", CONFIG)


# ---- through the loop


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    was = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(was)


def _loop(folder: Path, **changes: Any) -> Loop:
    settings = tiny_run.config(**changes)
    return tiny_run.build(Run(folder, to_dict(settings)), settings)


def test_the_loop_leaves_metrics_rollouts_and_the_newest_checkpoints(tmp_path: Path) -> None:
    """7 steps, saved every 2 and at the end: after steps 1, 3, 5 and 6, of which the last 2 are kept."""
    loop = _loop(tmp_path)
    train(loop)
    loop.finish()
    assert [s for s, _ in listing(loop.run.checkpoints, "train")] == [6, 5]
    assert [s for s, _ in loop.run.store.series("reward")] == list(range(7))
    assert len(loop.run.store.rollouts(step=3)) == loop.config.log_rollouts


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    first = _loop(tmp_path, steps=2)
    train(first)
    first.run.close()
    other = _loop(tmp_path, steps=2)
    other.learner.policy.model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match="another model"):
        other.run.restore(other)


class Watched:
    """A callback that calls a function after each step."""

    def __init__(self, call: Callable[[int, dict[str, float]], None]) -> None:
        self.call = call

    def on_step(self, loop: Loop, step: int, metrics: dict[str, float]) -> None:
        self.call(step, metrics)


def test_a_run_killed_before_its_first_checkpoint_starts_at_0_without_duplicates(tmp_path: Path) -> None:
    def kill(step: int, metrics: dict[str, float]) -> None:
        if step == 1:  # logged, not yet saved
            raise KeyboardInterrupt

    first = _loop(tmp_path, save_every=5)
    first.callbacks = [Watched(kill)]
    with pytest.raises(KeyboardInterrupt):
        train(first)
    assert len(first.run.store.series("loss")) == 2
    first.run.close()
    again = _loop(tmp_path, save_every=5)
    assert again.run.restore(again) == 0 and again.run.store.metrics() == []


def test_weights_of_a_finished_phase_come_back(tmp_path: Path) -> None:
    loop = _loop(tmp_path, steps=2)
    train(loop)
    fresh = tiny_run.policy()
    before = fresh.model.model.embed_tokens.weight.clone()
    loop.run.load_weights("train", fresh)
    trained = loop.learner.policy.state_dict()
    assert all(torch.equal(x, trained[k]) for k, x in fresh.state_dict().items())
    assert not torch.equal(before, fresh.model.model.embed_tokens.weight)
    with pytest.raises(UserError, match="no checkpoint of phase 'other'"):
        loop.run.load_weights("other", fresh)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_skipped_counted_and_survived(tmp_path: Path, bad: float) -> None:
    """The loss is broken in step 2 only (4 updates: 2 epochs of 2 minibatches); weights move at every other step."""
    broken = {"now": False}

    def loss(batch: Batch) -> Tensor:
        return ppo(batch) * (bad if broken["now"] else 1.0)

    settings = tiny_run.config(steps=4)
    method = tiny_run.method().but(loss=Part(loss, ppo.card))
    loop = tiny_run.build(Run(tmp_path, to_dict(settings)), settings, method)
    seen: list[Tensor] = []

    def watch(step: int, metrics: dict[str, float]) -> None:
        seen.append(loop.learner.policy.model.model.embed_tokens.weight.detach().clone())
        broken["now"] = step == 1

    loop.callbacks = [Watched(watch)]
    train(loop)
    assert [v for _, v in loop.run.store.series("skipped")] == [0.0, 0.0, 4.0, 4.0]
    assert torch.equal(seen[1], seen[2]) and not torch.equal(seen[2], seen[3]) and not torch.equal(seen[0], seen[1])
    assert math.isnan(loop.run.store.series("grad_norm")[2][1]) and torch.isfinite(seen[3]).all()
    assert [(e["step"], e["kind"]) for e in loop.run.store.events()] == [(2, "skipped update")]
    assert loop.learner.updates == 12


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    """A checkpoint copied in from another run must not be taken for this one's."""
    first = _loop(tmp_path / "a", steps=2)
    train(first)
    first.finish()
    other = _loop(tmp_path / "b", steps=2, lr=1e-3)
    os.rename(tmp_path / "a" / "checkpoints" / "train-000001", other.run.checkpoints / "train-000001")
    with pytest.raises(UserError, match="other settings"):
        other.run.restore(other)


def test_logging_a_step_is_fast(tmp_path: Path) -> None:
    """64 rollouts of 64 tokens in one transaction: well under a tenth of a second of processor."""
    loop = _loop(tmp_path, log_rollouts=-1, sampling=dataclasses.replace(tiny_run.config().sampling, max_tokens=64))
    loop.run.restore(loop)
    prompts = [loop.env.prompt(i) for i in range(16)]
    groups = loop.source.rollout(RolloutRequest(loop.source.policies, prompts, loop.config.sampling))
    assert sum(len(g.rollouts) for g in groups) == 64
    began = time.process_time()
    for step in range(10):
        loop.run.log("train", step, {"loss": 1.0}, groups, 0.0)
    assert (time.process_time() - began) / 10 < 0.1
