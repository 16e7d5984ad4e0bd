"""Methods that learn from written pairs, from the command line: a policy by DPO, a reward model, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import call

SMALL = ["--steps", "2", "--prompts", "4", "--eval-problems", "8"]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = [{"prompt": f"What is {i}+1?", "chosen": str(i + 1), "rejected": str(i)} for i in range(40)]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_dpo(pairs: Path, tmp_path: Path) -> None:
    said = call("run", "dpo", *SMALL, "--task", str(pairs), "--runs", str(tmp_path))
    assert said.code == 0, said.err
    assert "held-out pairs" in said.out and "posttrain eval" not in said.out and "dpo-mine" in said.out
    assert "ranked right" in said.out and "mean margin" in said.out and "2 steps of 4 pairs" in said.out
    assert "accuracy" not in said.out and "finished answers" not in said.out and "problems" not in said.out
    assert call("chat", "--model", "dpo-mine", "--runs", str(tmp_path), "--say", "hi", "--max-tokens", "4").code == 0


def test_reward_model(pairs: Path, tmp_path: Path) -> None:
    said = call("run", "reward-model", *SMALL, "--task", str(pairs), "--runs", str(tmp_path), "--json")
    assert said.code == 0, said.err
    assert 0 <= json.loads(said.out)["accuracy_after"] <= 1
    said = call("chat", "--model", "reward-model-mine", "--runs", str(tmp_path), "--say", "hi")
    assert said.code == 2 and "holds a reward model" in said.err


@pytest.mark.parametrize("method", ["dpo", "reward-model"])
def test_without_a_task_the_pairs_that_ship_are_learned_from(method: str, tmp_path: Path) -> None:
    said = call("run", method, *SMALL, "--runs", str(tmp_path))
    assert said.code == 0, said.err
    assert f"{method} on school_pairs" in said.out and (tmp_path / f"{method}-school_pairs").is_dir()
    assert json.loads((tmp_path / f"{method}-school_pairs" / "summary.json").read_text())["task"] == "school_pairs"
    said = call(
        "run",
        method,
        *SMALL,
        "--runs",
        str(tmp_path),
        "--eval-every",
        "1",
        "--name",
        "by-name",
        "--task",
        "school_pairs",
    )
    assert said.code == 0 and "pairs ranked right" in said.out


def test_pairs_are_no_task_for_those_who_answer(tmp_path: Path) -> None:
    said = call("run", "grpo", *SMALL, "--task", "school_pairs", "--runs", str(tmp_path))
    assert said.code == 2 and "holds preferences" in said.err


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("arithmetic", "'arithmetic' is no set of preference pairs"),
        ("hh_rlhf", "POSTTRAIN_DATA"),
        ("nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_no_pairs(task: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTTRAIN_DATA", raising=False)
    said = call("run", "dpo", *SMALL, "--task", task, "--runs", str(tmp_path))
    assert said.code == 2 and sentence in said.err


def test_columns_can_be_named(tmp_path: Path) -> None:
    rows = [{"q": f"Say {i}", "good": "yes", "bad": f"no {i}"} for i in range(30)]
    file = tmp_path / "odd.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = f"{file}(question='q', chosen='good', rejected='bad')"
    assert call("run", "ipo", *SMALL, "--task", task, "--runs", str(tmp_path), "--quiet").code == 0
    said = call(
        "run", "ipo", *SMALL, "--task", f"{file}(question='q', chosen='goood', rejected='bad')", "--runs", str(tmp_path)
    )
    assert said.code == 2 and "did you mean" in said.err
