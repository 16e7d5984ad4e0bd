"""`posttrain runs`, `samples`, `compare` of runs that exist, and `sweep`: what they print, and every kind of bad input."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from posttrain.commands.sweep import axis
from posttrain.core.registry import split_sum
from posttrain.runs.run import Run
from posttrain.view.live import tolerant
from tests.cli.conftest import FIRST, SMALL, Said, call

HOSTILE = "\x1b]0;owned\x07\x1b[2Jred"


@pytest.fixture
def some(first_run: Said, runs: Path, tmp_path: Path) -> Path:
    """Two copies of a run: one whose answers are hostile, one with another name."""
    for name in ("one", "two"):
        shutil.copytree(runs / "grpo-arithmetic", tmp_path / name)
    return tmp_path


def test_the_table_of_runs(some: Path) -> None:
    said = call("runs", str(some))
    assert said.code == 0 and said.out.split("\n")[0].split() == [
        "name",
        "method",
        "task",
        "model",
        "state",
        "step",
        "score",
        "started",
        "time",
    ]
    [row] = [line for line in said.out.splitlines() if line.startswith("one")]
    assert (
        "grpo" in row and "arithmetic" in row and "pocket" in row and "finished" in row and "2/2" in row and "->" in row
    )
    found = json.loads(call("runs", str(some), "one", "finished", "--json").out)
    assert [(r["name"], r["state"], r["step"], r["steps"]) for r in found] == [("one", "finished", 2, 2)]
    summary = json.loads((some / "one/summary.json").read_text())
    assert (found[0]["before"], found[0]["after"]) == (summary["accuracy_before"], summary["accuracy_after"])
    assert json.loads(call("runs", "--runs", str(some), "running", "--json").out) == []
    assert "start one: posttrain run grpo" in call("runs", str(some), "nothing-like-it").out
    said = call("runs", "--runs", str(some / "no"))
    assert said.code == 2 and "there is no folder" in said.err


def test_runs_that_are_broken_are_still_listed(some: Path) -> None:
    (some / "one/state.json").write_text("{")
    (some / "one/summary.json").unlink()
    (some / "two/run.sqlite").write_text("no database")
    for leftover in some.glob("two/run.sqlite-*"):
        leftover.unlink()
    found = json.loads(call("runs", str(some), "--json").out)
    assert {(r["name"], r["state"]) for r in found} == {("one", "stopped"), ("two", "stopped")}


def test_samples_of_a_run(some: Path) -> None:
    with Run.open(some / "one") as run:
        every = run.store.rollouts()
    rewards = [r["reward"] for r in every]
    worst, best = (
        json.loads(call("samples", "one", "--runs", str(some), which, "--json", "--limit", "1").out)[0]
        for which in ("--worst", "--best")
    )
    assert worst["reward"] == min(rewards) < max(rewards) == best["reward"]
    last = json.loads(call("samples", str(some / "one"), "--json", "--limit", "99").out)
    assert {r["step"] for r in last} == {2} and len(last) == sum(r["step"] == 1 for r in every)
    first = json.loads(call("samples", "one", "--runs", str(some), "--step", "1", "--json", "--limit", "99").out)
    assert [r["text"] for r in first] == [r["text"] for r in every if r["step"] == 0]
    word = every[0]["text"][:5]
    found = json.loads(call("samples", "one", "--runs", str(some), "--contains", word.upper(), "--json").out)
    assert found and all(word.lower() in (r["prompt"] + r["text"]).lower() for r in found)
    said = call("samples", "one", "--runs", str(some), "--contains", "no such text anywhere")
    assert said.code == 0 and "no answer with 'no such text anywhere' in it" in said.out


def test_samples_cannot_act_on_the_terminal(some: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from posttrain.runs.store import Store

    real = Store.rollouts

    def hostile(self: Store, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        return [
            r | {"text": HOSTILE, "prompt": HOSTILE, "rewards": {HOSTILE: 1.0, "b": 2.0}}
            for r in real(self, *args, **kwargs)
        ]

    monkeypatch.setattr(Store, "rollouts", hostile)
    said = call("samples", "one", "--runs", str(some))
    assert said.code == 0 and "\\x1b[2Jred" in said.out and "\x1b]0" not in said.out and "\x07" not in said.out
    assert "\x1b[2J" not in said.out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["onee"], "no run named 'onee'; did you mean 'one'?"),
        (["one", "--step", "9"], "--step is 9; "),
        (["one", "--component", "lenght"], "did you mean 'length"),
        (["one", "--limit", "0"], "--limit is 0"),
        (["one", "--phase", "trian"], "did you mean 'train'?"),
        (["one", "--best", "--worst"], "not allowed with"),
    ],
)
def test_mistakes_in_samples(some: Path, argv: list[str], sentence: str) -> None:
    said = call("samples", *argv, "--runs", str(some))
    assert said.code == 2 and sentence in said.err


def test_two_runs_side_by_side(some: Path) -> None:
    file = some / "two/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lr": 0.5, "name": "two"}))
    held = json.loads((some / "two/held_out.json").read_text())
    (some / "two/held_out.json").write_text(json.dumps(held | {"after": [1.0] * len(held["after"])}))
    argv = ["compare", str(some / "one"), str(some / "two")]
    made = json.loads(call(*argv, "--json").out)
    assert made["settings"] == [["lr", ["null", "0.5"]]] and made["same_problems"] and made["curve"] == "reward"
    one, two = made["arms"]
    assert two["after"] == 1.0 and two["ahead"] == pytest.approx(1.0 - one["after"])
    assert two["ahead_low"] <= two["ahead"] <= two["ahead_high"] and len(one["curve"]) == 2
    said = call(*argv, "--picture", str(some / "c.png"))
    assert (
        said.code == 0 and "ahead of one" in said.out and "0.5" in said.out and (some / "c.png").stat().st_size > 1000
    )
    (some / "two/held_out.json").write_text(json.dumps(held | {"prompts": ["other"] * len(held["prompts"])}))
    assert "were not measured on the same held-out problems" in call(*argv).out


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["grpo"], "grpo is not the folder of a run, and the others are"),
        ([], "needs two different runs or more"),
        (["two", "--steps", "3"], "leave --steps away"),
        (["two", "--seeds", "3"], "leave --seeds away"),
    ],
)
def test_mistakes_in_a_comparison_of_runs(some: Path, more: list[str], sentence: str) -> None:
    more = [str(some / "two") if word == "two" else word for word in more]
    said = call("compare", str(some / "one"), *more)
    assert said.code == 2 and sentence in said.err


# ---- sweeps


def test_a_sweep_its_table_and_again(tmp_path: Path) -> None:
    argv = [
        "sweep",
        *FIRST[1:],
        "--grid",
        "loss=ppo(low=0.1, high=0.3),cispo",
        "--eval-problems",
        "2",
        "--steps",
        "1",
        "--runs",
        str(tmp_path),
    ]
    said = call(*argv, "--name", "sw")
    assert said.code == 0, said.err
    assert (
        "2 runs in" in said.out
        and "loss=ppo(low=0.1, high=0.3), seed 0: accuracy" in said.out
        and "one seed each" in said.out
    )
    runs = sorted(p.name for p in (tmp_path / "sw").iterdir())
    assert runs == ["loss-cispo-s0", "loss-ppo-low-0.1-high-0.3-s0"]
    before = (tmp_path / "sw/loss-cispo-s0/state.json").read_text()
    rows = json.loads(call(*argv, "--name", "sw", "--seeds", "2", "--json").out)
    assert [(r["settings"]["loss"], r["seed"]) for r in rows] == [
        ("ppo(low=0.1, high=0.3)", 0), ("ppo(low=0.1, high=0.3)", 1), ("cispo", 0), ("cispo", 1),
    ]  # fmt: skip
    made = json.loads((tmp_path / "sw/loss-ppo-low-0.1-high-0.3-s1/config.json").read_text())
    assert made["seed"] == 1 and made["parts"]["loss"] == [{"part": "ppo", "low": 0.1, "high": 0.3}]
    assert json.loads(before)["step"] == 1 and len(json.loads(call("runs", str(tmp_path), "--json").out)) == 4
    said = call(*argv, "--name", "sw", "--lr", "0.5")
    assert said.code == 1 and "lr was null, is now 0.5" in said.out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["grpo"], "say what to vary"),
        (["--grid", "lr=1"], "say what to train"),
        (["grpo", "--grid", "lrr=1"], "no setting to sweep over named 'lrr'; did you mean 'lr'?"),
        (["grpo", "--grid", "max-tokens=1"], "did you mean 'sampling.max-tokens'?"),
        (["grpo", "--grid", "lr"], "no values; write it like --grid lr=1e-5,3e-5"),
        (["grpo", "--grid", "lr=1e-5,1e-5"], "a value is given twice"),
        (["grpo", "--grid", "lr=1e-5", "--grid", "lr=1e-4"], "--grid lr is given twice"),
        (["grpo", "--grid", "seed=1,2"], "use --seeds 3"),
        (["grpo", "--grid", "lr=1e-5,nope"], "expected a number, got 'nope'"),
        (["grpo", "--grid", "loss=ppo,cipso"], "did you mean 'cispo'?"),
        (["grpo", "--grid", "lr=1", "--fresh"], "would delete every run"),
        (["grpo", "--grid", "lr=1", "--jobs", "0"], "--jobs is 0"),
    ],
)
def test_mistakes_in_a_sweep_are_told_before_anything_is_trained(
    tmp_path: Path, argv: list[str], sentence: str
) -> None:
    said = call("sweep", *argv, *SMALL, "--runs", str(tmp_path / "runs"))
    assert said.code == 2 and sentence in said.err and not (tmp_path / "runs").exists()


def test_commas_inside_a_value() -> None:
    assert split_sum("a(b=1, c='x,y'),[1,2],z", ",") == ["a(b=1, c='x,y')", "[1,2]", "z"]
    assert axis("sampling.top_p=0.9,1") == ("sampling.top-p", ["0.9", "1"])


# ---- a reader that goes away


def test_training_goes_on_when_nobody_reads_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """`posttrain run ... | head -1`: the pipe is closed; printing ends and nothing is raised, at the end of the program neither."""
    read, write = os.pipe()
    stream = os.fdopen(write, "w", buffering=1)
    monkeypatch.setattr(sys, "stdout", stream)
    os.close(read)
    done = 0
    with tolerant():
        for _ in range(3):
            print("a line", flush=True)
            done += 1
    assert done == 3
    stream.flush()
    stream.close()


def test_the_interval_of_a_sweep_is_over_seeds() -> None:
    """0.5, 0.6, 0.7: mean 0.6, standard error 0.1 / sqrt(3), t(2) = 4.303: 0.6 -+ 0.248."""
    from posttrain.commands.sweep import Job
    from posttrain.view.sweep_table import row

    cell = (("lr", "1e-4"),)
    jobs = [Job(cell, i, "x", [], {"accuracy_before": 0.1, "accuracy_after": x}) for i, x in enumerate((0.5, 0.6, 0.7))]
    found = row(cell, [*jobs, Job(cell, 3, "x", [], None, "failed")], "accuracy")
    assert (found["runs"], found["ended"], found["mean"]) == (4, 3, pytest.approx(0.6))
    assert found["interval"] == "35.2% to 84.8%"
    assert row(cell, jobs[:1], "accuracy")["interval"] == ""
