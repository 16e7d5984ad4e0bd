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


def test_it_comes_with_a_model_card(exported: Path) -> None:
    card = (exported / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-generation\nlicense: apache-2.0\n")
    for words in ("from: pocket", "grpo (arXiv:2402.03300)", "held-out accuracy", "made with posttrain 0."):
        assert words in card
    command = next(line for line in card.splitlines() if line.startswith("posttrain run grpo"))
    for words in ("--steps 2", "--num-generations 2", "--sampling.temperature 3", "--reward 'length(target=1"):
        assert words in command


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
        (["grpo-arithmetic", "--to", "x", "--format", "gguff"], "did you mean 'gguf'?"),
        (["grpo-arithmetic", "--to", "x", "--format", "peft"], "has no adapters"),
        (["grpo-arithmetic", "--to", "x", "--gguf-type", "f16"], "add --format gguf"),
        (["grpo-arithmetic", "--to", "x.gguf", "--gguf-type", "q9"], "no type of GGUF weights named 'q9'"),
        (["grpo-arithmetic", "--to", "x.gguf", "--format", "hf"], "name a folder for --format hf"),
        (["grpo-arithmetic", "--push-to-hub", "no-slash"], "a repository is called org/name"),
        (["grpo-arithmetic", "--to", "x", "--phase", "rl"], "no checkpoint of phase 'rl'"),
    ],
)
def test_mistakes(first_run: Said, runs: Path, argv: list[str], sentence: str) -> None:
    said = call("export", *argv, "--runs", str(runs))
    assert said.code == 2 and sentence in said.err


def test_gguf_of_a_run(first_run: Said, runs: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    said = call("export", "grpo-arithmetic", "--runs", str(runs), "--to", str(tmp_path / "m.gguf"))
    assert said.code == 0 and "llama.cpp" in said.out
    assert len(gguf.GGUFReader(tmp_path / "m.gguf").tensors) == 56
    said = call("export", "grpo-arithmetic", "--runs", str(runs), "--to", str(tmp_path / "folder"), "--format", "gguf", "--gguf-type", "q8_0")  # fmt: skip
    assert said.code == 0 and "llama-cli" in (tmp_path / "folder" / "README.md").read_text()
    assert (tmp_path / "folder" / "model.gguf").stat().st_size < 0.35 * (tmp_path / "m.gguf").stat().st_size


def test_a_run_of_adapters_alone_and_merged(runs: Path, tmp_path: Path) -> None:
    from posttrain.policies.load import load_model

    small = (
        "--steps",
        "1",
        "--prompts",
        "2",
        "--num-generations",
        "2",
        "--eval-problems",
        "0",
        "--sampling.max-tokens",
        "4",
    )
    hot = ("--reward", "length(target=1, soft=200, unit='characters')", "--sampling.temperature", "3", "--lr", "0.1")
    where = ("--runs", str(tmp_path))
    assert call("run", "grpo", *small, *hot, "--lora", "2", "--lora-targets", "q_proj,up_proj", *where, "--name", "lo", "--quiet").code == 0  # fmt: skip
    adapter, merged, again = (tmp_path / name for name in ("adapter", "merged", "again"))
    assert call("export", "lo", *where, "--to", str(adapter), "--format", "peft").code == 0
    assert json.loads((adapter / "adapter_config.json").read_text())["target_modules"] == ["q_proj", "up_proj"]
    assert call("export", "lo", *where, "--to", str(merged)).code == 0
    assert call("export", str(adapter), "--to", str(again)).code == 0  # an adapter is merged with its base
    tokens_BT = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        of = {f: load_model(str(f), "cpu") for f in (adapter, merged, again)}
        of |= {"run": load_run(tmp_path / "lo", device="cpu")[0], "base": load_model("pocket", "cpu")}
        found = {f: p.model.logits(p.model.hidden(tokens_BT)) for f, p in of.items()}
    for f in (adapter, merged, again):
        torch.testing.assert_close(found[f], found["run"], atol=1e-4, rtol=1e-4)
    assert (found["run"] - found["base"]).abs().max() > 1e-3
    on = call(
        "run", "grpo", *small, *hot, "--model", "pocket", "--adapter", str(adapter), *where, "--name", "on", "--quiet"
    )
    assert on.code == 0, on.err  # and trained further
    assert call("export", "on", *where, "--to", str(tmp_path / "more"), "--format", "peft").code == 0
    assert json.loads((tmp_path / "more" / "adapter_config.json").read_text())["r"] == 2
    chained = ("--model", str(tmp_path / "on"), *where, "--quiet")  # a run that began with an adapter is a model too
    assert call("run", "grpo", *small, *hot, *chained, "--name", "third", "--lora", "2").code == 0
    assert call("eval", "--model", "third", *where, "--problems", "1", "--max-tokens", "2").code == 0
    refused = call("export", "third", *where, "--to", str(tmp_path / "no"), "--format", "peft")
    assert refused.code == 2 and "export it merged" in refused.err
    both = call("run", "grpo", *small, "--model", str(adapter), "--lora", "3", *where, "--name", "x")
    assert both.code == 2 and "has rank 2, and --lora is 3" in both.err


class Hub:
    """What is called of the hub's client; the last folder that was pushed."""

    calls: list = []

    def create_repo(self, name: str, private: bool, exist_ok: bool) -> None:
        Hub.calls.append((name, private))

    def upload_folder(self, folder_path: str, repo_id: str, commit_message: str) -> None:
        Hub.calls.append(sorted(p.name for p in Path(folder_path).iterdir()))
        if repo_id.endswith("closed"):
            raise PermissionError("403 Forbidden: not yours\nmore")


def test_pushing_to_the_hub(first_run: Said, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    push = ("export", "grpo-arithmetic", "--runs", str(runs), "--push-to-hub")
    said = call(*push, "me/model")
    assert said.code == 2 and "hf auth login" in said.err and Hub.calls == []
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    said = call(*push, "me/model", "--private")
    assert said.code == 0 and "https://huggingface.co/me/model" in said.out
    assert Hub.calls[0] == ("me/model", True) and {"README.md", "config.json", "model.safetensors"} <= set(Hub.calls[1])
    said = call(*push, "me/closed", "--to", str(tmp_path / "kept"))
    assert said.code == 2 and "403 Forbidden: not yours" in said.err and "the files are in" in said.err
    assert 'from_pretrained("me/closed")' in (tmp_path / "kept" / "README.md").read_text()
