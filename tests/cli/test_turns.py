"""A task with turns at the command line: everything is kept and shown by turn, what was observed apart from what was said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Prompt, Rollout
from posttrain.evals.turns import turn_figures
from tests.cli.conftest import call

GAME = '''
import posttrain as pt


class Echo(pt.Environment):
    """Two turns or three; each is paid, and the last reply is a number that the model has not said."""

    def prompt(self, index, split="train"):
        return pt.Prompt.text(f"echo-{split}-{index}", f"Say {index % 3}.", str(index % 3))

    def open(self, prompt, key):
        return Talk(2 + int(prompt.answer) % 2)


class Talk(pt.Episode):
    def __init__(self, left):
        self.left = left

    async def step(self, turn):
        self.left -= 1
        if not self.left:
            return pt.Step(None, reward=1.0 + len(turn.text) / 100, info={"metrics": {"letters": len(turn.text)}})
        return pt.Step([{"role": "user", "content": f"What is 5+{self.left}?"}], reward=0.25)
'''
SMALL = [
    "--steps",
    "1",
    "--prompts",
    "2",
    "--num-generations",
    "2",
    "--eval-problems",
    "2",
    "--sampling.max-tokens",
    "40",
]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A file with the game, and a folder with a run on it."""
    folder = tmp_path_factory.mktemp("turns")
    file = folder / "echo_game.py"
    file.write_text(GAME)
    said = call("run", "grpo", "--task", f"{file}:Echo", "--runs", str(folder / "runs"), "--name", "echo", *SMALL)
    assert said.code == 0, said.err
    return f"{file}:Echo", str(folder / "runs")


def test_samples_are_shown_by_turn(played: tuple[str, str]) -> None:
    said = call("samples", "echo", "--runs", played[1], "--limit", "9").out
    shown = [block for block in said.split("\n\n") if "turns of policy" in block]
    assert shown and all("[1] policy, reward 0.250: " in block for block in shown)
    assert any("stopped: answered" in block and "  | " in block and "What is 5+1?" in block for block in shown)
    rows = json.loads(call("samples", "echo", "--runs", played[1], "--limit", "9", "--json").out)
    many = [row for row in rows if row.get("by_turn")]
    assert many and all(row["role"] == "policy" and row["stop"] in ("answered", "length") for row in many)
    for row in many:
        assert row["by_turn"][0]["observed"] is None and "What is 5+" in row["by_turn"][1]["observed"]
        assert row["total"] == pytest.approx(sum(t["reward"] or 0 for t in row["by_turn"]))
        assert "What is" not in row["by_turn"][1]["said"]


def test_a_run_that_does_not_know_its_pieces_still_opens(played: tuple[str, str]) -> None:
    import sqlite3

    with sqlite3.connect(Path(played[1]) / "echo" / "run.sqlite") as db:
        kept = db.execute("SELECT id, bytes FROM pieces").fetchall()
        db.execute("DELETE FROM pieces")
    try:
        assert " tokens)" in call("samples", "echo", "--runs", played[1], "--limit", "9").out
    finally:
        with sqlite3.connect(Path(played[1]) / "echo" / "run.sqlite") as db:
            db.executemany("INSERT INTO pieces VALUES (?, ?)", kept)


def test_eval_reports_turns_and_stops_and_saves_them(played: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "p.jsonl"
    argv = ["eval", "--model", "echo", "--runs", played[1], "--problems", "3", "--save", str(out)]
    found = json.loads(call(*argv, "--json").out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert found["turns_per_episode"] == sum(len(r["turns"]) for r in rows) / 3
    assert sum(found["stops"].values()) == 3 and found["stops"].get("answered", 0) == sum(
        r["stop"] == "answered" for r in rows
    )
    for row in rows:
        for turn in row["turns"][:-1]:
            assert turn["reward"] == 0.25 and turn["replied"][0]["content"].startswith("What is 5+")
    table = call(*argv).out
    assert "turns per episode" in table and "stopped: " in table
    if "metrics" in found:
        assert "metric: letters" in table


def test_episodes_are_generated_as_conversations_that_sft_reads(played: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "talks.jsonl"
    argv = ["generate", "--task", played[0], "--problems", "3", "--max-tokens", "40", "--out", str(out)]
    said = call(*argv)
    assert said.code == 0, said.err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    whole = next(r for r in rows if r["stop"] == "answered")
    roles = [m["role"] for m in whole["messages"]]
    assert (
        roles == ["user", "assistant"] * (len(roles) // 2)
        and len(roles) == 2 * len(whole["turns"])
        and "tokens" not in whole
    )
    assert whole["reward"] == pytest.approx(sum(t["reward"] for t in whole["turns"]))
    again = call(*argv)
    assert "0 answers written" in again.out and [json.loads(x) for x in out.read_text().splitlines()] == rows
    learned = call(
        "run",
        "sft",
        "--task",
        str(out),
        "--runs",
        str(tmp_path),
        "--name",
        "sft",
        "--steps",
        "1",
        "--prompts",
        "2",
        "--eval-problems",
        "0",
    )
    assert learned.code == 0, learned.err


def test_methods_are_compared_by_the_reward_of_held_out_episodes(played: tuple[str, str]) -> None:
    said = call("compare", "grpo", "rloo", "--task", played[0], "--seeds", "2", *SMALL)
    assert said.code == 0, said.err
    first = said.out.splitlines()[0]
    before = float(first.partition("held-out reward before: ")[2])
    assert before > 0.25 and "%" not in first


def test_calls_and_measures_are_averaged_over_episodes() -> None:
    def one(stop: str, **info: Any) -> Rollout:
        turn = Turn.empty(Observation(torch.zeros(0).long()))
        return Rollout(Prompt.text("p", "q"), [turn, turn], stop=stop, info=info)

    record = {"calls": [{}, {}], "faults": ["no such tool"]}
    found = turn_figures(
        [one("answered", tools=[record, {"calls": [], "faults": []}], metrics={"a": 1.0}), one("content")]
    )
    assert found == {
        "turns_per_episode": 2.0, "stops": {"answered": 1, "content": 1}, "calls_per_episode": 1.0, "faults_per_episode": 0.5,
        "metrics": {"a": 1.0},
    }  # fmt: skip
