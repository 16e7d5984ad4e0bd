"""A run that learns nothing says so, on the screen, in the events and in the summary."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import posttrain as pt
from posttrain.core.types import Group, Prompt
from posttrain.runs.reader import Reader
from posttrain.runs.silence import Silence, why
from posttrain.runs.unscored import Unscored
from tests.runs import tiny_run


def run(tmp_path: Path, reward: Any, steps: int = 7, **more: Any) -> dict[str, Any]:
    return pt.run(
        model=tiny_run.policy(), env=tiny_run.Count(), reward=reward, steps=steps, prompts=2, runs=tmp_path, name="quiet",
        eval_problems=2, sampling={"max_tokens": 6}, num_generations=4, method=pt.find_method("grpo").but(terms=()),
        **more,
    )  # fmt: skip


def test_equal_rewards_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = run(tmp_path, lambda prompt, text: 0.0)
    assert summary["steps_without_learning"] == 7
    told = capsys.readouterr().err
    assert "nothing was learned for 5 steps" in told and "too hard" in told and told.count("warning") == 1


def test_a_run_that_learns_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = run(tmp_path, lambda prompt, text: float(sum(map(ord, text)) % 97))
    assert summary["steps_without_learning"] == 0 and "nothing was learned" not in capsys.readouterr().err


def test_why_answers_could_not_be_scored_is_told_and_an_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def late_at_night(prompt: Prompt, text: str) -> float:
        if sum(map(ord, text)) % 2:
            raise TimeoutError("the grader is asleep")
        return float(sum(map(ord, text)) % 97)

    summary = run(tmp_path, late_at_night, steps=3)
    said = capsys.readouterr().err
    with Reader(tmp_path / "quiet" / "run.sqlite") as reader:
        told = {e["step"]: e["message"] for e in reader.events("reward error")}
        failed = {step: int(n) for step, n in reader.series("failed", "train") if n}
    assert failed and set(told) == set(failed)
    for step, n in failed.items():
        assert f"failed on {n} of 8 (TimeoutError: the grader is asleep" in told[step], told[step]
    first = min(failed)
    line = f"warning: step {first + 1}: {failed[first]} of 8 answers could not be scored, and nothing is learned from them: "
    assert line + told[first] in said and said.count("could not be scored") == 1, (
        "told once, and again at the 10th such step"
    )
    assert summary["unscored_answers"] == sum(failed.values())


def test_a_tenth_step_with_answers_that_could_not_be_scored_is_told_with_all_so_far(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counted, again = Unscored(), Unscored()
    loop = SimpleNamespace(unscored="the server is down")
    for step in range(6):
        counted.check(step, [], {"failed": 2.0 * (step % 2 == 0)}, loop)
    again.load_state_dict(counted.state_dict())
    capsys.readouterr()
    for step in range(6, 12):
        again.check(step, [], {"failed": 1.0}, loop)
    assert capsys.readouterr().err == ""
    assert again.check(12, [], {"failed": 1.0}, loop).endswith("the server is down (13 answers in 10 steps so far)")


class Run:
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def event(self, *args: Any) -> None:
        self.events.append(args)


class Loop:
    phase = "train"

    def __init__(self) -> None:
        self.run = Run()


def test_only_steps_on_end_count_and_the_count_survives_a_restart() -> None:
    silence, loop = Silence(), Loop()
    for step in range(20):
        silence.check(step, [], {"groups_kept": 1.0, "grad_norm": 0.0 if step % 5 else 1.0}, loop)
    assert loop.run.events == [] and silence.total == 16
    again = Silence()
    again.load_state_dict(silence.state_dict())
    assert again.check(20, [], {"groups_kept": 0.0, "grad_norm": 0.0}, loop) and len(loop.run.events) == 1


def test_a_flat_loss_of_comparisons_is_not_called_a_hard_task() -> None:
    prompt = Prompt.text("1", "which")
    policy = tiny_run.policy()
    good, bad = policy.written(prompt, "a"), policy.written(prompt, "b")
    good.reward, bad.reward = 1.0, 0.0
    assert "smaller beta" in why([Group(prompt, [good, bad], pairs=((0, 1),))], {"grad_norm": 0.0})
    good.rewards = {"label": 1.0}
    assert "smaller beta" in why([Group(prompt, [good])], {"grad_norm": 0.0}), "one answer is no group of equal ones"


def test_a_monitor_that_is_newer_than_the_checkpoint_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that an earlier version began goes on."""

    def failing(prompt: Prompt, text: str) -> float:
        if sum(map(ord, text)) % 2:
            raise ValueError("no")
        return float(sum(map(ord, text)) % 97)

    with monkeypatch.context() as earlier:
        earlier.setattr("posttrain.runs.build.Unscored", lambda: SimpleNamespace(check=lambda *_: ""))
        assert run(tmp_path, failing, steps=2, schedule="constant")["unscored_answers"] == 0
    summary = run(tmp_path, failing, steps=4, schedule="constant")
    with Reader(tmp_path / "quiet" / "run.sqlite") as reader:
        failed = [n for step, n in reader.series("failed", "train") if step >= 2]
    assert summary["steps"] == 4 and summary["unscored_answers"] == sum(failed) > 0
