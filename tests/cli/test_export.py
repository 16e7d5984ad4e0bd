"""`export`: a folder that transformers loads with equal logits, and metrics as tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from posttrain.commands.export import wide
from posttrain.commands.policy import load_run
from tests.cli.conftest import Said, call


@pytest.fixture(scope="module")
def exported(first_run: Said, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    said = call("export", "grpo-arithmetic", "--runs", str(runs), "--to", str(folder))
    assert said.code == 0 and f"posttrain chat --model {folder}" in said.out
    return folder


def test_transformers_loads_it_with_equal_logits(exported: Path, runs: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    tokens_BT = torch.tensor([AutoTokenizer.from_pretrained(exported)("What is 12+7? Think first.")["input_ids"]])
    ours, _ = load_run(runs / "grpo-arithmetic", device="cpu")
    with torch.no_grad():
        want = ours.model.logits(ours.model.hidden(tokens_BT))
        got = theirs(tokens_BT).logits
    assert float((want - got).abs().max()) < 1e-4


def test_it_is_the_trained_model_and_not_the_one_it_began_with(exported: Path) -> None:
    from posttrain.policies.load import POCKET, read_weights

    before, after = read_weights(POCKET), read_weights(exported)
    assert any(float((before[k].float() - after[k].float()).abs().max()) > 1e-6 for k in after)


def test_it_can_be_trained_on_and_chatted_with(exported: Path) -> None:
    said = call("chat", "--model", str(exported), "--say", "What is 2+3? Answer only.", "--max-tokens", "16")
    assert said.code == 0 and said.out.strip()


def test_a_folder_with_something_in_it_is_left_alone(exported: Path, runs: Path) -> None:
    said = call("export", "grpo-arithmetic", "--runs", str(runs), "--to", str(exported))
    assert said.code == 2 and "not empty" in said.err


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_metrics(first_run: Said, runs: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "sub" / f"metrics.{kind}"
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    said = call("export", "grpo-arithmetic", "--runs", str(runs), "--metrics", str(file), "--json")
    assert said.code == 0 and json.loads(said.out)["rows"] == 2
    if kind == "csv":
        rows = list(csv.DictReader(file.open()))
    elif kind == "jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    else:
        import pyarrow.parquet as pq

        rows = pq.read_table(file).to_pylist()
    assert [int(r["step"]) for r in rows] == [0, 1]
    assert all(0 <= float(r["reward"]) <= 1 and float(r["seconds"]) > 0 for r in rows)


def test_rows_are_steps_and_nan_is_empty() -> None:
    values = [("a", 0, "x", 1.0), ("a", 1, "x", float("nan")), ("a", 0, "y", 2.0)]
    made = wide([dict(zip(("phase", "step", "name", "value"), v)) for v in values])
    assert made == [{"phase": "a", "step": 0, "x": 1.0, "y": 2.0}, {"phase": "a", "step": 1, "x": None}]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["nothing", "--to", "x"], "no run named 'nothing'"),
        (["grpo-arithmetic", "--metrics", "m.txt"], "let its name end in .csv"),
        (["grpo-arithmetic", "--to", "x", "--format", "gguf"], "no model format named 'gguf'"),
        (["grpo-arithmetic", "--to", "x", "--phase", "rl"], "no checkpoint of phase 'rl'"),
    ],
)
def test_mistakes(first_run: Said, runs: Path, argv: list[str], sentence: str) -> None:
    said = call("export", *argv, "--runs", str(runs))
    assert said.code == 2 and sentence in said.err
