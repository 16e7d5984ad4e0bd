"""A judge by URL in a whole run, and `posttrain serve` as the server: judge, evaluation and answers through HTTP alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.runs.run import Run
from tests.cli.conftest import call
from tests.openai_server import Fake
from tests.rewards.test_judge import by_length

SMALL = ["--steps", "2", "--prompts", "2", "--num-generations", "2", "--eval-problems", "0", "--sampling.max-tokens", "4", "--quiet"]  # fmt: skip


def rewards(folder: Path) -> list[float]:
    with Run.open(folder) as run:
        return [r["reward"] for r in run.store.rollouts()]


def metrics(folder: Path) -> dict[str, float]:
    """The last value of each."""
    with Run.open(folder) as run:
        return {row["name"]: row["value"] for row in run.store.metrics()}


def test_a_run_is_judged_and_asks_nothing_twice(tmp_path: Path) -> None:
    hot = ["--sampling.temperature", "3", "--runs", str(tmp_path)]
    with (fake := Fake(by_length)).listening() as url:
        reward = f"judge(url='{url}', high=100, cache='{tmp_path}')"
        assert call("run", "grpo", "--reward", reward, *SMALL, *hot, "--name", "a").code == 0
        asked = len(fake.asked)
        assert 0 < asked <= 8 and metrics(tmp_path / "a")["reward/judge/requests"] > 0
        assert call("run", "grpo", "--reward", reward, *SMALL, *hot, "--name", "b").code == 0
    assert len(fake.asked) == asked and rewards(tmp_path / "a") == rewards(tmp_path / "b")
    found = metrics(tmp_path / "b")
    assert (
        found["reward/judge/requests"] == 0 and found["reward/judge/cached"] == 4 and found["reward/judge/failed"] == 0
    )


def test_a_judge_that_cannot_be_read_or_reached_ends_the_first_step_with_its_words(tmp_path: Path) -> None:
    where = ["--runs", str(tmp_path)]
    with Fake(lambda body: "I like it").listening() as url:
        said = call("run", "grpo", "--reward", f"judge(url='{url}', cache='none')", *SMALL, *where, "--name", "mute")
    assert said.code == 2 and "the judge gave no single score: 'I like it'" in said.err
    said = call("run", "grpo", "--reward", f"judge(url='{url}', cache='none')", *SMALL, *where, "--name", "gone")
    assert said.code == 2 and "nothing answers at" in said.err and said.err.count("\n") <= 2


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """`posttrain serve` in a process of its own, on any free port."""
    command = [sys.executable, "-m", "posttrain", "serve", "--model", "pocket", "--port", "0", "--device", "cpu"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    assert process.stderr is not None
    lines = []
    while not (found := re.search(r"http://[\d.:]+(?:/v1)?", "".join(lines))):
        lines.append(process.stderr.readline())
        assert lines[-1], f"the server did not start: {''.join(lines)}"
    yield found[0]
    process.terminate()
    process.communicate(timeout=30)


def test_our_own_server_answers_and_judges(served: str, tmp_path: Path) -> None:
    few = ["--task", "arithmetic", "--problems", "4", "--max-tokens", "24", "--temperature", "0", "--json"]
    here = json.loads(call("eval", "--model", "pocket", *few).out)
    there = call("eval", "--url", served, *few)
    assert there.code == 0, there.err
    assert json.loads(there.out)["accuracy"] == here["accuracy"]  # greedy: the same answers
    assert json.loads(there.out)["tokens_per_answer"] == here["tokens_per_answer"]
    judge = (
        f"judge(url='{served}', rubric='What is 2+3? Answer only.', high=1000000, max_tokens=24, cache='{tmp_path}')"
    )
    first = call("eval", "--reward", judge, *few)
    assert first.code == 0, first.err
    told = json.loads(first.out)
    again = json.loads(call("eval", "--reward", judge, *few).out)
    assert told["failed"] == 0 and told["reward"] == again["reward"] > 0


def test_a_wrong_model_name_is_told_with_the_right_one(served: str) -> None:
    said = call("eval", "--url", served, "--model", "poket", "--problems", "1")
    assert said.code == 2 and "did you mean 'pocket'?" in said.err
