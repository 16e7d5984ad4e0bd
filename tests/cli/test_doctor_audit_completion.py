"""`doctor`, `audit` and `completion`."""

from __future__ import annotations

import argparse
import json
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
    assert found["built-in model"]["state"] == "ok" and "says" in found["built-in model"]["told"]
    assert all(f["fix"] for f in found.values() if f["state"] == "problem")


def test_doctor_tells_what_to_do(tmp_path: Path) -> None:
    said = call("doctor", "--data", str(tmp_path / "nowhere"), "--device", "cuda:7", "--model", "org/none")
    assert said.code == 1
    assert "no data folder at" in said.out and "set POSTTRAIN_DATA=PATH" in said.out
    assert "-> " in said.out and "problems to mend" in said.out and "not on this disk" in said.out


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


def test_memory_of_a_run_by_hand() -> None:
    """V = 10, D = 2, one layer with I = 4, tied: weights 20 + 4*4 + 3*8 = 60, in 5 copies of 4 bytes: 1200.
    3 tokens of 3*10*4 + (14*2 + 4*4)*4 = 120 + 176 bytes: 888."""
    config = {
        "vocab_size": 10,
        "hidden_size": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 4,
        "tie_word_embeddings": True,
    }
    assert doctor.bytes_of_run(config, 4, 3) == 1200 + 888


def test_a_model_that_does_not_fit_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available", lambda device: 1e6)
    found = doctor.estimate(argparse.Namespace(model="pocket", dtype="float32", micro_tokens=16384, device=""))
    assert found.state == "problem" and "--micro-tokens" in found.fix


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
