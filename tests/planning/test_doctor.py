"""`posttrain doctor --hardware 8xh100-80gb`: what a user reads, and mistakes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import call

PLAN = [
    "doctor",
    "--model",
    "Qwen/Qwen2.5-7B",
    "--hardware",
    "8xh100-80gb",
    "--context",
    "8192",
    "--prompts",
    "64",
    "--num-generations",
    "8",
]


def test_a_plan_has_memory_layouts_stages_and_a_command() -> None:
    said = call(*PLAN, "--nodes", "2", "--price", "2")
    assert said.code == 0, said.err
    for word in ("2 nodes of 8 x h100-80gb", "colocated, synchronous", "memory per card", "fp32 shards of the parameters",
                 "gathered bf16 layers", "activations", "keys and values", "engine's joined matrices", "reference", "time per step",
                 "rollouts", "training", "publishing", "bottleneck", "failures", "GPU-hours", "per GPU-hour", "command", "posttrain run grpo"):  # fmt: skip
        assert word in said.out, word
    assert "simulated" in said.out and "measured on one H200" in said.out


def test_the_figures_as_json() -> None:
    found = json.loads(call(*PLAN, "--json").out)
    layouts = {f["what"]: f["figures"] for f in found if f["figures"].get("fits")}
    best = next(f for f in found if f["what"] == "best")
    assert layouts[best["told"]] == best["figures"]
    sync = layouts["colocated, synchronous"]
    assert (
        sync["cards"] == sync["trainers"] == 8 and sync["p50_s"] <= sync["p95_s"] and sync["staleness"] == {"0": 8 * 16}
    )
    memory = next(f["figures"] for f in found if f["what"] == "memory per card")
    assert sum(memory["parts"].values()) <= memory["free"]


def test_what_does_not_fit_ends_with_what_would() -> None:
    said = call("doctor", "--model", "Qwen/Qwen2.5-14B", "--hardware", "8xh100-80gb", "--context", "8192")
    assert said.code == 1
    assert "fits in no layout on 8 x h100-80gb" in said.out and "would fit" in said.out and "--nodes" in said.out
    said = call("doctor", "--model", "Qwen/Qwen2.5-72B", "--hardware", "8xh100-80gb", "--context", "8192")
    assert said.code == 1 and "use a smaller model, or cards with more memory" in said.out


@pytest.mark.parametrize(
    "words, told",
    [
        (("--prompts", "1000000", "--num-generations", "64"), "64,000,000 per step; at most 1,000,000 are planned for"),
        (("--lora", "999999999"), "a rank is at most 65,536"),
    ],
)
def test_sizes_that_nobody_means(words: tuple[str, ...], told: str) -> None:
    said = call("doctor", "--model", "Qwen/Qwen2.5-0.5B", "--hardware", "8xh100-80gb", "--context", "1024", *words)
    assert said.code == 2 and told in said.err


def test_a_folder_a_reward_model_and_the_lengths_of_a_run(tmp_path: Path) -> None:
    config = {"model_type": "llama", "vocab_size": 512, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6,
              "num_attention_heads": 4, "max_position_embeddings": 1024}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    with sqlite3.connect(run / "run.sqlite") as store:
        store.execute("CREATE TABLE rollouts (length INTEGER)")
        store.executemany("INSERT INTO rollouts VALUES (?)", [(10,), (30,), (500,)])
    words = [
        "doctor",
        "--model",
        str(tmp_path),
        "--hardware",
        "2xl4",
        "--context",
        "1000",
        "--lengths",
        "one",
        "--runs",
        str(tmp_path / "runs"),
    ]
    said = call(*words, "--reward-model", "Qwen/Qwen2.5-0.5B", "--json")
    found = json.loads(said.out)
    assert said.code == 0 and "as 3 answers of that run, 180 tokens on average" in found[0]["told"]
    assert "reward model" in next(f["told"] for f in found if "reward model" in f["told"])
    (run / "run.sqlite").write_bytes(b"not a database, only text")
    assert "cannot be read" in call(*words).err
    (run / "run.sqlite").unlink()
    assert "has no run.sqlite" in call(*words).err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--hardware", "8xh100-80g"], "did you mean 'h100-80gb'?"),
        (["--hardware", "0xh100-80gb"], "0 cards; a node has at least 1"),
        (["--hardware", "8xh100-80gb", "--model", "Qwen/Qwen2.5-9B"], "did you mean Qwen/Qwen2.5-7B"),
        (["--hardware", "8xh100-80gb", "--model", "no/such"], "is not on this disk"),
        (["--hardware", "8xh100-80gb", "--model", "Qwen/Qwen2.5-7B", "--context", "200000"], "trained for 131,072 positions; use --context 131072"),
        (["--model", "Qwen/Qwen2.5-7B", "--context", "64", "--hardware", "2xl4"], "a prompt takes 128 of it"),
        (["--hardware", "8xh100-80gb", "--context", "900", "--max-tokens", "8"], "use one of them"),
        (["--hardware", "2xl4", "--max-tokens", "2000"], "--max-tokens and --prompt-tokens are 2,128, and pocket was trained for 1,024"),
        (["--nodes", "4"], "--nodes is for a plan on several cards"),
        (["--price", "2", "--hardware", "h100-80gb"], "--price is for a plan on several cards"),
        (["--hardware", "8xh100-80gb", "--nodes", "0"], "--nodes is 0"),
        (["--hardware", "2xl4", "--method", "sft"], "sft samples no answers"),
        (["--hardware", "2xl4", "--bits", "4", "--lora", "8"], "4 bits are not sharded"),
        (["--hardware", "2xl4", "--dtype", "float32"], "computes in bfloat16"),
        (["--hardware", "2xl4", "--mean-tokens", "65"], "is from 1 to 64"),
        (["--hardware", "2xl4", "--mean-tokens", "5", "--lengths", "x"], "use one of them"),
        (["--hardware", "2xl4", "--reward-seconds", "-1"], "must be 0 or more"),
        (["--hardware", "2xl4", "--prompts", "0"], "--prompts is 0"),
        (["--hardware", "2xl4", "--critic", "shared"], "for a method with a critic"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = call("doctor", *words)
    assert said.code != 0 and sentence in said.err, said
    assert said.err.count("\n") == 1 and "Traceback" not in said.err


def test_a_context_is_checked_for_one_card_too() -> None:
    said = call("doctor", "--hardware", "h100-80gb", "--model", "Qwen/Qwen2.5-7B", "--context", "200000")
    assert "trained for 131,072 positions" in said.out + said.err


def test_a_known_model_needs_no_hub_for_one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = json.loads(
        call(
            "doctor",
            "--hardware",
            "h100-80gb",
            "--model",
            "Qwen/Qwen2.5-7B-Instruct",
            "--lora",
            "16",
            "--context",
            "640",
            "--json",
        ).out
    )
    memory = next(f for f in found if f["what"] == "memory of a run")
    assert memory["figures"]["parameters"] == 7_615_616_512 and memory["figures"]["work"]["max_tokens"] == 512
