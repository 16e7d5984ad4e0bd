"""Runs from runs: the same one for longer, a new one from its weights or its optimiser state, the best checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.errors import UserError
from posttrain.models.lora import merged_state
from posttrain.runs import build, run
from posttrain.runs.best import best_of
from posttrain.runs.checkpoint import newest
from posttrain.runs.reading import read_run
from posttrain.runs.run import Run
from posttrain.runs.trained import find_trained, load_trained
from tests.runs import tiny_run
from tests.runs.test_resume import ending, same


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model by name is the tiny one."""
    monkeypatch.setattr(build, "load_model", lambda *_: tiny_run.policy())


def varied(prompt: Any, text: str) -> float:
    """Answers of the untrained policy differ in this, so there is something to learn from."""
    return len(set(text)) / 4


def small(folder: Path, **changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "env": tiny_run.Count(), "model": "tiny", "steps": 2, "prompts": 4, "num_generations": 4, "eval_problems": 2,
        "save_every": 2, "sampling": {"max_tokens": 4}, "runs": folder, "name": "small", "lr": 3e-3, "warmup": 0,
        "reward": varied,
    }  # fmt: skip
    return pt.run(**(plain | changes))


def weights(folder: Path, phase: str = "train") -> dict[str, torch.Tensor]:
    found = newest(folder / "checkpoints", phase)
    assert found is not None
    return found.tables["weights"]


def test_a_longer_run_is_the_one_that_was_asked_for_at_once(tmp_path: Path) -> None:
    """Weights, optimiser, metrics (of the evaluation at the old end too), answers, best checkpoint: bit for bit."""
    how: dict[str, Any] = {"schedule": "constant", "eval_every": 2, "warmup": 3}
    small(tmp_path / "at-once", steps=5, **how)
    for steps in (2, 4, 5):
        assert small(tmp_path / "longer", steps=steps, **how)["steps"] == steps
    same(ending(tmp_path / "longer/small"), ending(tmp_path / "at-once/small"))
    assert best_of(tmp_path / "longer/small", "train") == best_of(tmp_path / "at-once/small", "train") is not None
    configs = [json.loads((tmp_path / f / "small/config.json").read_text()) for f in ("longer", "at-once")]
    assert configs[0] == configs[1]


def test_a_run_that_is_continued_is_not_at_its_end(tmp_path: Path) -> None:
    class Look:
        state = ""

        def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
            self.state = read_run(loop.run.folder, tmp_path).state
            self.finished = loop.run.finished("train")

    small(tmp_path, schedule="constant")
    assert read_run(tmp_path / "small", tmp_path).state == "finished"
    look = Look()
    small(tmp_path, schedule="constant", steps=3, callbacks=[look])
    assert look.state == "running" and not look.finished
    assert read_run(tmp_path / "small", tmp_path).state == "finished"


def test_a_kill_while_a_run_is_made_longer_does_not_leave_it_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before the new settings are written: with them and still at its end, a sweep would take the shorter one's score."""
    small(tmp_path, schedule="constant")

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run, "write_atomic", dies)
        small(tmp_path, schedule="constant", steps=3)
    with Run.open(tmp_path / "small") as found:
        assert not found.finished("train") and found.config["steps"] == 2
    assert small(tmp_path, schedule="constant", steps=3)["steps"] == 3


def test_a_schedule_that_falls_is_extended_only_when_asked(tmp_path: Path) -> None:
    small(tmp_path)
    with pytest.raises(
        UserError, match=r"has fallen by then \(schedule linear\); add --extend-schedule .* --model .*small"
    ):
        small(tmp_path, steps=4)
    assert small(tmp_path, steps=4, extend_schedule=True)["steps"] == 4
    with pytest.raises(UserError, match="steps was 4, is now 3"):
        small(tmp_path, steps=3, extend_schedule=True)


def test_another_run_as_the_model(tmp_path: Path) -> None:
    """Its weights, and nothing else of it; what is trained from it can be read when it is gone."""
    small(tmp_path)
    was = weights(tmp_path / "small")
    for name in ("small", str(tmp_path / "small")):  # by name in the folder of runs, or by path
        small(tmp_path, name="second", model=name, steps=0, fresh=True)
        made, _ = load_trained(find_trained(name, tmp_path), build.load_policy)  # type: ignore[arg-type]
        assert all(torch.equal(x, was[k]) for k, x in made.state_dict().items() if k in was)
    small(tmp_path, name="second", model="small", steps=1, fresh=True)
    assert json.loads((tmp_path / "second/config.json").read_text())["base"] == "tiny"
    shutil.rmtree(tmp_path / "small")
    made, _ = load_trained(find_trained("second", tmp_path), build.load_policy)  # type: ignore[arg-type]
    now = weights(tmp_path / "second")
    assert all(torch.equal(x, now[k]) for k, x in made.state_dict().items() if k in now)
    assert any(not torch.equal(now[k], was[k]) for k in was)
    with pytest.raises(UserError, match="cannot begin with itself"):
        small(tmp_path, name="second", model="second", fresh=True)
    assert weights(tmp_path / "second").keys() == now.keys()  # and nothing was deleted
    with pytest.raises(UserError, match="second is a run, which has its own adapters"):
        small(tmp_path, name="third", model="second", adapter="some/folder")
    with pytest.raises(UserError, match="no run named 'smal'"):
        small(tmp_path, name="third", model=f"{tmp_path}/smal")


def test_adapters_are_merged_into_a_model_and_kept_with_their_optimiser(tmp_path: Path) -> None:
    small(tmp_path, lora=2)
    trained, _ = load_trained(find_trained("small", tmp_path), build.load_policy)  # type: ignore[arg-type]
    seen: dict[str, Any] = {}

    class First:
        def on_begin(self, loop: Any, before: Any) -> None:
            seen["state"] = {k: v.clone() for k, v in loop.policy.model.state_dict().items()}
            seen["optimiser"] = {k: x.clone() for k, x in loop.learner.tensors()["optimiser"].items()}
            seen["updates"] = loop.learner.updates

    small(tmp_path, name="whole", model="small", steps=1, callbacks=[First()])
    merged, now = merged_state(trained.model), weights(tmp_path / "whole")
    assert any(not torch.equal(x, now[f"model.{k}"]) for k, x in merged.items() if f"model.{k}" in now)  # they learn
    assert not any("lora" in k for k in now)
    assert all(torch.equal(x, merged[k]) for k, x in seen["state"].items() if k in merged)
    with pytest.raises(
        UserError, match=r"optimiser state of .*small is of other parameters .*--lora 2.*--no-optimizer"
    ):
        small(tmp_path, name="branch", model="tiny", start_from="small")
    small(tmp_path, name="branch", start_from="small", lora=2, steps=1, callbacks=[First()])
    was = newest(tmp_path / "small/checkpoints", "train")
    assert was is not None and seen["updates"] == 0
    assert all(torch.equal(x, was.tables["weights"][f"model.{k}"]) for k, x in seen["state"].items() if "lora" in k)
    assert seen["optimiser"].keys() == was.tables["optimiser"].keys()
    assert all(torch.equal(x, was.tables["optimiser"][k]) for k, x in seen["optimiser"].items())


def test_the_optimiser_state_changes_the_first_step_and_can_be_left_behind(tmp_path: Path) -> None:
    small(tmp_path)
    small(tmp_path, name="with", start_from="small", steps=1)
    small(tmp_path, name="without", start_from="small", optimizer=False, steps=1)
    small(tmp_path, name="model", model="small", steps=1)
    made = [weights(tmp_path / name) for name in ("with", "without", "model")]
    assert any(not torch.equal(made[0][k], made[1][k]) for k in made[0])
    assert all(torch.equal(made[1][k], made[2][k]) for k in made[1])
    with pytest.raises(UserError, match=r"optimizer was true, is now false"):
        small(tmp_path, name="with", start_from="small", optimizer=False, steps=1)
    with pytest.raises(UserError, match=r"the optimiser adamw, whose state .* cannot use"):
        method = pt.find_method("grpo").but(optimiser="sgd")
        small(tmp_path, name="other", start_from="small", steps=1, method=method)


def test_what_it_began_with_matters_until_the_first_checkpoint(tmp_path: Path) -> None:
    small(tmp_path, schedule="constant")
    small(tmp_path, name="begun", model="small", steps=0)
    small(tmp_path, name="saved", model="small")
    small(tmp_path, schedule="constant", steps=3)  # it goes on, so its newest weights are others
    for _ in range(2):  # then with what a kill in the middle of the first checkpoint leaves behind
        with pytest.raises(UserError, match=r"what .*begun learns from has changed .*small was .*train-000001"):
            small(tmp_path, name="begun", model="small", steps=0)
        (tmp_path / "begun/checkpoints/.tmp-train-000001").mkdir(exist_ok=True)
    assert small(tmp_path, name="saved", model="small")["steps"] == 2


def test_a_reward_file_and_a_reward_run_may_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "taste_that_changes.py"
    file.write_text("def long(prompt, text):\n    return float(len(text))\n")
    how = {"reward": "0.5*taste_that_changes.py:long"}
    small(tmp_path, **how)
    file.write_text("# a comment\ndef long(prompt, text):\n    return float(len(text))\n")
    small(tmp_path, **how)
    file.write_text("def long(prompt, text):\n    return -float(len(text))\n")
    with pytest.raises(UserError, match=r"has changed since it began \(.*taste_that_changes.py was .*put it back"):
        small(tmp_path, **how)
    small(tmp_path, **how, fresh=True)


def test_inputs_of_a_reward_that_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from posttrain.runs.inputs import inputs

    def train_reward_model(steps: int) -> None:
        rows = [{"prompt": f"write {c}", "chosen": c * 4, "rejected": "x"} for c in "abcd" * 8]
        small(
            tmp_path,
            name="rm",
            env=None,
            task=rows,
            method="reward-model",
            sampling={},
            steps=steps,
            schedule="constant",
            reward=None,
            num_generations=None,
        )

    train_reward_model(1)
    first = inputs(f"0.5*length + {tmp_path}/rm")
    assert list(first) == [f"{tmp_path}/rm"] == list(inputs(f"win_rate(judge='length + {tmp_path}/rm')"))
    monkeypatch.chdir(tmp_path)
    assert list(inputs("0.5*length + rm")) == ["rm"] == list(inputs("'rm' + length(unit='characters')"))
    assert inputs("numeric + 0.2*format") == {} == inputs("")
    assert inputs(f"0.5*length + {tmp_path}/rm") == first
    train_reward_model(2)
    assert inputs(f"0.5*length + {tmp_path}/rm") != first


def test_how_runs_end(tmp_path: Path) -> None:
    def fails(prompt: Any, text: str) -> float:
        raise ValueError("no")

    with pytest.raises(UserError):
        small(tmp_path, name="failed", reward=fails)
    assert small(tmp_path, name="stopped", max_hours=1e-9, steps=3)["paused"].startswith(
        "the time limit of 1e-09 hours"
    )
    small(tmp_path, name="finished")
    with Run(tmp_path / "finished", json.loads((tmp_path / "finished/config.json").read_text())):
        assert read_run(tmp_path / "finished", tmp_path).state == "running"
    rows = [read_run(tmp_path / name, tmp_path) for name in ("failed", "stopped", "finished")]
    assert [row.state for row in rows] == ["failed", "stopped", "finished"]
    assert "reward failed on every answer" in rows[0].why and "time limit" in rows[1].why
    assert [row.step for row in rows] == [0, 1, 2] and rows[2].after is not None and rows[1].after is None
    (tmp_path / "stopped/state.json").write_text('{"state": "runn')  # a kill in the middle of writing it
    assert read_run(tmp_path / "stopped", tmp_path).state == "stopped"
    (tmp_path / "stopped/state.json").write_text('{"seconds": null, "step": "y", "started": [], "why": 3}')
    assert read_run(tmp_path / "stopped", tmp_path).step == 1
    assert small(tmp_path, name="stopped", steps=3)["steps"] == 3
