"""`eval` with other rewards, tables by column, saved answers, reward models on pairs, models behind an API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Said, call
from tests.openai_server import Fake

FEW = ["--problems", "4", "--max-tokens", "8"]


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("eval") / "sums.jsonl"
    rows = [
        {"question": f"What is {i}+1?", "answer": str(i + 1), "kind": "even" if i % 2 else "odd"} for i in range(12)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [
        {"prompt": f"What is {i}+1?", "chosen": str(i + 1), "rejected": f"{i}, I think", "kind": "ab"[i % 2]}
        for i in range(20)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def figures(*argv: str) -> dict:
    said = call("eval", *argv, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)


def test_every_row_of_a_file_by_column_and_saved(sums: Path, tmp_path: Path) -> None:
    saved = tmp_path / "out" / "predictions.jsonl"
    told = figures("--task", f"{sums}(think=False)", "--split", "all", "--by", "kind", "--save", str(saved), "--max-tokens", "6")  # fmt: skip
    rows = [json.loads(line) for line in saved.read_text().splitlines()]
    assert told["problems"] == len(rows) == 12 and told["saved"] == str(saved)
    assert sum(r["problems"] for r in told["rows"]) == 12 and {r["value"] for r in told["rows"]} == {"even", "odd"}
    assert told["accuracy"] == pytest.approx(sum(r["reward"] for r in rows) / 12)
    assert rows[0].keys() >= {"prompt", "gold", "answer", "reward", "components", "tokens", "stop", "kind"}
    low, high = told["interval"]
    assert low <= told["accuracy"] <= high and high - low > 0.05  # twelve problems say little


def test_another_reward(tmp_path: Path) -> None:
    told = figures("--reward", "0.5*length(target=1, soft=200, unit='characters')", *FEW)
    assert 0 < told["reward"] < 0.5 and told["reward_by"].startswith("0.5*length") and "accuracy" not in told
    said = call("eval", "--reward", "nummeric", *FEW)
    assert said.code == 2 and "did you mean 'numeric'?" in said.err


def test_a_reward_model_on_other_pairs(pairs: Path, tmp_path: Path) -> None:
    trained = ("run", "reward-model", "--steps", "1", "--prompts", "2", "--eval-problems", "0", "--lr", "0.003")
    assert call(*trained, "--runs", str(tmp_path), "--name", "rm", "--quiet").code == 0
    model = ("--model", str(tmp_path / "rm"), "--task", str(pairs), "--by", "kind")
    saved = tmp_path / "pairs.jsonl"
    told = figures(*model, "--save", str(saved))
    assert told["pairs"] == 20 and [r["pairs"] for r in told["rows"]] == [10, 10]  # all of a file it was not trained on
    rows = [json.loads(line) for line in saved.read_text().splitlines()]
    assert told["accuracy"] == pytest.approx(sum((r["margin"] > 0) + 0.5 * (r["margin"] == 0) for r in rows) / 20)
    assert 0 <= told["calibration_error"] <= 1 and told["scored_by"] == "the reward model"
    said = call("eval", *model)
    assert said.code == 0 and "calibration error" in said.out and "margin" in said.out
    own = figures("--model", "rm", "--runs", str(tmp_path))
    assert own["task"] == "school_pairs" and own["pairs"] < 60  # those held out of its own
    said = call("eval", *model, "--temperature", "0")
    assert said.code == 2 and "pairs are written already" in said.err


def test_a_policy_on_pairs(pairs: Path) -> None:
    told = figures("--task", str(pairs), "--problems", "6")
    assert told["pairs"] == 6 and told["scored_by"] == "log-probability" and "calibration" not in told


def test_pairs_longer_than_the_window_are_left_out_and_counted(tmp_path: Path) -> None:
    """As in training; of a reward model too, and a sentence where none is left."""
    file, rows = tmp_path / "pairs.jsonl", [{"prompt": "What is 1+1?", "chosen": "2", "rejected": "3"}] * 3
    long = {"prompt": "What is 1+1?", "chosen": "2", "rejected": "3 or 4 " * 600}
    file.write_text("".join(json.dumps(row | {"n": i}) + "\n" for i, row in enumerate([*rows, long, long])))
    told = figures("--task", str(file), "--split", "all")
    assert told["pairs"] == 3 and told["left_out"] == 2 and told["failed"] == 0
    assert "left out: 2 pairs of more than 1,024 tokens" in call("eval", "--task", str(file), "--split", "all").out
    trained = ("run", "reward-model", "--steps", "1", "--prompts", "2", "--eval-problems", "0", "--task", str(file))
    assert call(*trained, "--runs", str(tmp_path), "--name", "rm", "--quiet").code == 0
    scored = figures("--model", str(tmp_path / "rm"), "--task", str(file), "--split", "all")
    assert scored["pairs"] == 3 and scored["left_out"] == 2 and scored["failed"] == 0
    file.write_text((json.dumps(long) + "\n") * 2)
    said = call("eval", "--task", str(file), "--split", "all")
    assert said.code == 2 and "pairs are longer than the model's window of 1,024 tokens" in said.err


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("", "the name of the model is empty; pass pocket"),
        ("RUNS/nope@best", "no run named 'RUNS/nope': there are no runs in RUNS; start one: posttrain run grpo"),
    ],
)
def test_a_model_that_is_none(model: str, sentence: str, tmp_path: Path) -> None:
    model, sentence = model.replace("RUNS", str(tmp_path)), sentence.replace("RUNS", str(tmp_path))
    for argv in (["eval"], ["run", "grpo", "--steps", "1", "--quiet", "--name", "x"]):
        said = call(*argv, "--model", model, "--runs", str(tmp_path))
        assert said.code == 2 and f"error: {sentence}" in said.err, said.err


def test_a_model_behind_an_api(sums: Path) -> None:
    def answer(body: dict) -> object:
        number = int(body["messages"][-1]["content"].split()[2].split("+")[0])
        return (400, {"error": {"message": "filtered"}}) if number == 3 else str(number + 1 if number < 8 else 0)

    with Fake(answer).listening() as url:
        told = figures("--url", url, "--task", f"{sums}(think=False)", "--split", "all")
        assert told["model"] == "fake" and told["problems"] == 12 and told["failed"] == 1
        assert told["accuracy"] == pytest.approx(7 / 11) and "filtered" in told["why"]  # 8 to 11 are wrong
        said = call("eval", "--url", url, "--model", "fakee", "--task", str(sums))
        assert said.code == 2 and "did you mean 'fake'?" in said.err
    said = call("eval", "--url", url, "--task", str(sums))
    assert said.code == 2 and "nothing answers at" in said.err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--by", "knd"], "did you mean 'kind'?"),
        (["--save", "/"], "it is a folder"),
        (["--api-key-env", "X"], "give its address with --url"),
        (["--url", "http://127.0.0.1:9", "--device", "cpu"], "leave it away with --url"),
    ],
)
def test_mistakes(sums: Path, argv: list[str], sentence: str) -> None:
    said = call("eval", "--task", str(sums), *argv, *FEW)
    assert said.code == 2 and sentence in said.err, said.err


def test_a_task_without_answers_needs_a_reward(tmp_path: Path, first_run: Said) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Say {i}."}) + "\n" for i in range(20)))
    said = call("eval", "--task", str(file), *FEW)
    assert said.code == 2 and "--reward NAME" in said.err
    assert figures("--task", str(file), "--reward", "length(target=1, soft=200, unit='characters')", *FEW)["reward"] > 0
