"""`doctor`, `audit` and `completion`."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from posttrain.commands import doctor
from tests.cli.conftest import call

# ---- doctor


def test_doctor_finds_everything_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTTRAIN_DATA", raising=False)
    said = call("doctor", "--runs", str(tmp_path / "runs"), "--json")
    found = {f["what"]: f for f in json.loads(said.out)}
    assert said.code == 0, found
    for what in ("Python", "torch", "transformers", "device", "cores", "memory", "built-in model", "disk", "data sets"):
        assert what in found
    for what, name in (("built-in model", "pocket"), ("one that acts", "pocket-2")):
        assert found[what]["state"] == "ok" and found[what]["told"].startswith(f"{name} loads, and says")
    assert all(f["fix"] for f in found.values() if f["state"] == "problem")


def test_doctor_tells_what_to_do(tmp_path: Path) -> None:
    said = call("doctor", "--data", str(tmp_path / "nowhere"), "--device", "cuda:7", "--model", "org/none")
    assert said.code == 1
    assert "no data folder at" in said.out and "set POSTTRAIN_DATA=PATH" in said.out
    assert "-> " in said.out and "problems to fix" in said.out and "not on this disk" in said.out


def test_doctor_knows_which_data_sets_are_there(tmp_path: Path) -> None:
    for file in ("gsm8k/train.jsonl.gz", "gsm8k/test.jsonl.gz", "math/math500.jsonl.gz"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("")
    found = doctor.data_sets(str(tmp_path))
    assert f"found in {tmp_path}: gsm8k;" in found.told  # math lacks its training file
    assert "math" in found.told.partition("not there: ")[2]


def test_doctor_counts_old_versions_as_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "1.9.0+cpu")
    found = {f.what: f for f in doctor.versions()}
    assert found["torch"].state == "problem" and found["torch"].fix == "pip install 'torch>=2.11'"


def test_doctor_looks_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTTRAIN_DATA", raising=False)
    argv = [
        "--prompts",
        "4",
        "--num-generations",
        "2",
        "--max-tokens",
        "32",
        "--device",
        "cpu",
        "--runs",
        str(tmp_path),
    ]
    found = {f["what"]: f for f in json.loads(call("doctor", *argv, "--json").out)}
    assert "our decoder on cpu" in found["engine"]["told"] and "tokens/s" in found["speed of a run"]["told"]
    figures = found["memory of a run"]["figures"]
    assert figures["parameters"] == 1_640_064 and figures["work"]["n"] == 2 and figures["slots"] == 8
    assert figures["memory"]["weights"] == 4 * 1_640_064 == figures["memory"]["reference"]  # GRPO's KL needs one
    assert figures["total"] == sum(figures["memory"].values()) and figures["step_s"] > 0
    free_of_kl = json.loads(call("doctor", *argv, "--method", "sft", "--json").out)[-2]["figures"]
    assert free_of_kl["memory"]["reference"] == 0


def test_a_model_that_does_not_fit_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "available", lambda device: 1e6)
    said = call("doctor", "--device", "cpu", "--runs", str(tmp_path))
    assert said.code == 1 and "only 1 MB are free" in said.out
    assert "use --dtype bfloat16, --lora 16, fewer --max-tokens" in said.out
    # 512 answers of 192 places take 604 MB, the rest but activations 81; those of 20,480 tokens would take 1,887, and 315 are
    # left: 16384 * 315 / 1887 = 2735 tokens, in powers of two 2048
    monkeypatch.setattr(doctor, "available", lambda device: 1e9)
    more = ["--prompts", "64", "--num-generations", "8", "--micro-tokens", "16384"]
    assert "use --micro-tokens 2048, --dtype" in call("doctor", "--device", "cpu", "--runs", str(tmp_path), *more).out


def test_other_architectures_are_estimated_as_the_nearest_known(tmp_path: Path) -> None:
    config = {"model_type": "gemma2", "vocab_size": 50, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
              "num_attention_heads": 2, "hidden_act": "gelu", "tie_word_embeddings": True}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = call("doctor", "--model", str(tmp_path), "--device", "cpu", "--runs", str(tmp_path))
    assert "transformers on cpu" in said.out and "memory of a run  about" in said.out
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 8}))
    said = call("doctor", "--model", str(tmp_path), "--device", "cpu", "--runs", str(tmp_path))
    assert said.code == 0 and "so its size is not known" in said.out


# ---- audit


def test_audit_of_a_sound_reward() -> None:
    said = call("audit", "exact_match", "--task", "strings", "--problems", "6", "--json")
    report = json.loads(said.out)
    assert said.code == (0 if report["ok"] else 1)
    assert {r["family"] for r in report["rows"]} >= {"empty", "whitespace"}
    assert next(r for r in report["rows"] if r["kind"] == "gold")["mean"] == 1.0


def test_audit_finds_what_can_be_exploited() -> None:
    """The format reward pays for tags whatever stands in them: wrong answers score as well as the gold ones."""
    said = call("audit", "format", "--problems", "6")
    assert said.code == 1 and "exploit" in said.out and "score as well as" in said.out and "next:" in said.out


def test_audit_of_a_sum() -> None:
    said = call("audit", "numeric + 0.2*format", "--problems", "4", "--json")
    gold = next(r for r in json.loads(said.out)["rows"] if r["kind"] == "gold")
    assert gold["mean"] == pytest.approx(1.2)  # full marks in both


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["nummeric"], "did you mean 'numeric'?"),
        (["numeric", "--problems", "0"], "--problems is 0"),
        (["numeric", "--task", "nope"], "no task named 'nope'"),
        (["numeric + "], "cannot read ''"),
    ],
)
def test_audit_mistakes(argv: list[str], sentence: str) -> None:
    said = call("audit", *argv)
    assert said.code == 2 and sentence in said.err


# ---- completion


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    line = " ".join(f"'{w}'" for w in words)
    code = f'{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _posttrain; printf "%s\\n" "${{COMPREPLY[@]}}"'
    made = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    return made.stdout.split()


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_completes() -> None:
    script = call("completion", "bash").out
    assert completed(script, "posttrain", "ex") == ["export"]
    assert "grpo" in completed(script, "posttrain", "run", "gr")
    assert completed(script, "posttrain", "run", "grpo", "--sampling.max") == ["--sampling.max-tokens"]
    assert completed(script, "posttrain", "run", "grpo", "--task", "arith") == ["arithmetic"]
    assert completed(script, "posttrain", "audit", "nume") == ["numeric"]


def test_other_shells() -> None:
    zsh, fish = call("completion", "zsh").out, call("completion", "fish").out
    assert "bashcompinit" in zsh and "_posttrain" in zsh
    assert "complete -c posttrain -n __fish_use_subcommand -a export" in fish and "-l sampling.max-tokens" in fish
    for shell, script in (("zsh", zsh), ("fish", fish)):
        if shutil.which(shell):
            subprocess.run([shell, "-n"], input=script, text=True, check=True)


def advised(out: str) -> list[list[str]]:
    """The commands under `next:`, without what they are said to do."""
    lines = out.partition("next:")[2].strip().splitlines()
    return [shlex.split(line.strip().partition("  ")[0]) for line in lines if line.strip().startswith("posttrain ")]


def test_audit_advises_commands_that_work(tmp_path: Path) -> None:
    mine = tmp_path / "my audit.py"
    mine.write_text("def short(prompt, text):\n    return 1 / (1 + len(text))\n")
    data = tmp_path / "my sums.jsonl"
    data.write_text("".join(json.dumps({"question": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(30)))
    small = [
        "--steps",
        "1",
        "--prompts",
        "1",
        "--num-generations",
        "2",
        "--eval-problems",
        "1",
        "--runs",
        str(tmp_path),
    ]
    for reward in ("format", "format + 0.2*length(target=9)", f"{mine}:short", "exact_match"):
        said = call("audit", reward, "--problems", "3", "--task", str(data))
        commands = advised(said.out)
        assert commands and (said.code == 1) == (commands[0][1] != "run")
        for command in commands:
            found = call(*command[1:], *(small if command[1] == "run" else []))
            assert found.code == 0, (command, found.err)
