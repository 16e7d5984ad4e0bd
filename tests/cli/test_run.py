"""`posttrain run`: what it prints, what it writes, resuming, other parts, and every kind of bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.commands.run import again, literal, run_name
from posttrain.core.config import Config
from posttrain.core.method import find_method
from posttrain.core.plan import Do, Plan, plan
from posttrain.core.registry import _PARTS
from tests.cli.conftest import FIRST, SMALL, Said, call


def test_first_run(first_run: Said, runs: Path) -> None:
    assert first_run.code == 0
    for words in ("before training:", "step 1/2", "step 2/2", "accuracy", "before", "after", "reward", "next:"):
        assert words in first_run.out
    assert f"posttrain chat --model grpo-arithmetic --runs {runs}" in first_run.out
    assert first_run.out.count("before ✗") + first_run.out.count("before ✓") == 3  # three problems, each twice
    summary = json.loads((runs / "grpo-arithmetic" / "summary.json").read_text())
    assert summary["method"] == "grpo" and summary["eval_problems"] == 4 and summary["steps"] == 2


def test_the_same_command_again_finds_it_ended(first_run: Said, runs: Path) -> None:
    said = call(*FIRST, "--runs", str(runs))
    assert said.code == 0 and "had already finished" in said.out and "step 1/2" not in said.out


def test_json_is_the_summary_and_nothing_else(first_run: Said, runs: Path) -> None:
    said = call(*FIRST, "--runs", str(runs), "--json")
    summary = json.loads(said.out)
    assert summary["task"] == "arithmetic" and summary["steps"] == 2
    assert summary == json.loads((runs / "grpo-arithmetic" / "summary.json").read_text())


def test_other_settings_are_refused_with_what_changed(first_run: Said, runs: Path) -> None:
    said = call(*FIRST, "--runs", str(runs), "--lr", "0.5")
    assert said.code == 2
    assert "lr was null, is now 0.5" in said.err and "--fresh" in said.err and "--name" in said.err


def test_other_parts_make_another_method_and_another_name(runs: Path) -> None:
    parts = ["--loss", "cispo(high=4)", "--terms", "none", "--select", "zero-variance", "--epochs", "2"]
    said = call("run", "grpo", *SMALL, *parts, "--runs", str(runs), "--quiet", "--seed", "3")
    assert said.code == 0, said.err
    assert "step 1/2" not in said.out and "accuracy" in said.out
    folder = runs / "grpo-cispo-zero-variance-arithmetic-s3"
    made = json.loads((folder / "config.json").read_text())["parts"]
    assert made["loss"] == [{"part": "cispo", "high": 4}]
    assert made["terms"] == [] and made["epochs"] == 2
    assert made["select"][0]["part"] == "zero-variance"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--loss", "cipso"], "no loss named 'cipso'; did you mean 'cispo'?"),
        (["--loss", "cispo(hihg=3)"], "cispo has no parameter 'hihg'; did you mean 'high'?"),
        (["--loss", "cispo(high=)"], "cannot read 'cispo(high=)'"),
        (["--loss", "entropy"], "no loss named 'entropy'"),
        (["--terms", "kl + entropi"], "no term named 'entropi'; did you mean 'entropy'?"),
        (["--curriculum", "unifrom"], "did you mean 'uniform'?"),
        (["--epochs", "0"], "epochs is 0"),
        (["--minibatches", "0"], "minibatches is 0"),
        (["--name", "../x"], "cannot be a file name"),
        (["--plan.x", "3"], "grpo is a method, and --plan.x is for plans"),
        (["--model", "pockett"], "no model named 'pockett'"),
        (["--device", "cudaa"], "torch cannot use the device 'cudaa'"),
        (["--device", "meta"], "torch cannot use the device 'meta'"),
        (["--dtype", "floaty"], "dtype is 'floaty'"),
        (["--layout", "sharde"], "layout is 'sharde'"),
        (["--level", "9"], "expected 1 to 6"),
        (["--task", "arithmetik"], "no task named 'arithmetik'; did you mean 'arithmetic'?"),
        (["--task", "nowhere.jsonl"], "no data file at nowhere.jsonl"),
        (["--reward", "nummeric"], "did you mean 'numeric'?"),
        (["--reward", "num eric"], "write it like 'numeric + 0.2*format'"),
    ],
)
def test_bad_choices(argv: list[str], sentence: str, tmp_path: Path) -> None:
    said = call("run", "grpo", *SMALL, "--runs", str(tmp_path), "--quiet", *argv)
    assert said.code == 2
    assert sentence in said.err and said.err.startswith("error: ") and "Traceback" not in said.err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no rows"),
        ('{"question": "x", "answer": "1"}\n{oops\n', "line 2: not JSON"),
        ('{"foo": "x", "bar": "1"}\n', "no question column"),
        (
            '{"question": "What is 1+1?", "answer": "2"}\n',
            "has no test questions",
        ),  # the only one is trained on
    ],
)
def test_bad_data_files(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(text)
    said = call("run", "grpo", *SMALL, "--runs", str(tmp_path / "runs"), "--task", str(file))
    assert said.code == 2 and sentence in said.err


def test_a_data_file_of_ones_own(tmp_path: Path) -> None:
    rows = [{"ask": f"What is {a}+{b}?", "answer": str(a + b)} for a in range(3, 9) for b in range(3, 9)]
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = f"{file}(question='ask')"
    said = call("run", "grpo", *SMALL, "--runs", str(tmp_path), "--task", task, "--no-think", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["eval_problems"] > 0


def test_prompts_without_gold_answers_are_measured_by_the_runs_reward(tmp_path: Path) -> None:
    file, taste = tmp_path / "asks.jsonl", tmp_path / "taste_without_gold.py"
    file.write_text("".join(json.dumps({"prompt": f"Tell me about {i}."}) + "\n" for i in range(30)))
    taste.write_text("def ten(prompt, text):\n    return 10.0\n")
    argv = ["run", "grpo", *SMALL, "--runs", str(tmp_path), "--task", str(file)]
    said = call(*argv, "--reward", f"{taste}:ten", "--eval-every", "1")
    assert said.code == 0, said.err
    assert "before training: reward 10.000 ± 0" in said.out and "held-out 10.000" in said.out
    assert "accuracy" not in said.out and "posttrain eval" not in said.out  # there is nothing to grade by
    summary = json.loads((tmp_path / "grpo-asks" / "summary.json").read_text())
    assert summary["reward_before"] == summary["reward_after"] == 10.0 and "accuracy_after" not in summary
    said = call(*argv, "--fresh")
    assert said.code == 2 and "has no gold answers" in said.err and "--reward mine.py:function" in said.err
    for argv in (["eval"], ["compare", "grpo", "rloo"]):
        said = call(*argv, "--task", str(file))
        assert said.code == 2 and "has no gold answers" in said.err


def test_parts_of_ones_own(parts_file: Path, tmp_path: Path) -> None:
    argv = [*SMALL, "--runs", str(tmp_path), "--use", str(parts_file), "--json"]
    name = "mine-" + tmp_path.name.replace("_", "-")
    said = call("run", name, *argv, "--reward", "0.5*task + short_answers")
    assert said.code == 0, said.err
    assert json.loads(said.out)["method"] == name


def test_a_reward_that_always_raises_is_told_with_its_line(parts_file: Path, tmp_path: Path) -> None:
    said = call("run", "grpo", *SMALL, "--runs", str(tmp_path), "--use", str(parts_file), "--reward", "always_raises")
    assert said.code == 2
    assert "KeyError: 'no such key'" in said.err and f"{parts_file.name}:10" in said.err


def test_a_broken_file_of_parts_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken_parts.py"
    file.write_text("x = 1\ny = x / 0\n")
    said = call("run", "grpo", "--use", str(file))
    assert said.code == 2 and "line 2: ZeroDivisionError: division by zero" in said.err


def test_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C after a step: 130, and the command that goes on, which must not start over."""
    import posttrain.api as recipe

    def stopped(loop: object) -> None:
        raise KeyboardInterrupt

    argv = ["run", "grpo", *SMALL, "--runs", str(tmp_path), "--fresh"]
    with monkeypatch.context() as patched:
        patched.setattr(recipe, "train", stopped)
        said = call(*argv)
    assert said.code == 130
    resume = said.err.strip().splitlines()[-1].strip()
    assert resume.startswith("posttrain run grpo --steps 2") and "--fresh" not in resume


def test_a_plan_and_its_options(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    def note_it_down(rounds: int = 1, word: str = "a") -> Plan:
        """Note: writes its options down."""

        def work(context: object) -> None:
            seen.append((rounds, word))

        return Plan((Do("note", work),), "note-it-down")

    try:
        plan(title="Note")(note_it_down)
        where = ["--runs", str(tmp_path), "--quiet"]
        assert call("run", "note-it-down", "--plan.rounds", "3", *where).code == 0
        assert call("run", "note-it-down(rounds=2, word='b')", "--fresh", *where).code == 0
        assert seen == [(3, "a"), (2, "b")]
        assert call("run", "note-it-down", "--plan.word", "52,42", "--fresh", *where).code == 0
        assert call("run", "note-it-down", "--plan.word", "'7'", "--fresh", *where).code == 0
        assert seen[2:] == [(1, "52,42"), (1, "7")], "a text stays one, also where it could be numbers"
        said = call("run", "note-it-down", "--plan.runds", "3", "--fresh", *where)
        assert said.code == 2 and "did you mean 'rounds'?" in said.err
        said = call("run", "note-it-down", "--loss", "cispo", *where)
        assert said.code == 2 and "is a plan" in said.err
    finally:
        _PARTS["plan"].pop("note-it-down", None)


def test_names_of_runs() -> None:
    """method, changed parts, task, model and seed where they are not the usual ones."""
    grpo = find_method("grpo")
    assert run_name(grpo, [], Config()) == "grpo-arithmetic"
    assert run_name(grpo, [], Config(task="reasoning-gym/chain_sum", seed=2)) == "grpo-reasoning-gym-chain_sum-s2"
    assert run_name(grpo, [], Config(task="some/my.data.jsonl", model="a/b")) == "grpo-my-b"
    assert run_name(grpo.but(loss="cispo"), ["loss"], Config()) == "grpo-cispo-arithmetic"


def test_small_things() -> None:
    assert literal("3") == 3 and literal("0.5") == 0.5 and literal("ppo") == "ppo" and literal("None") is None
    assert again(["run", "grpo", "--fresh", "--task", "a b"]) == "posttrain run grpo --task 'a b'"


def test_ctrl_c_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """A real process and a real SIGINT after the second of six steps: 130, and then not all of them again."""
    tiny = [*SMALL, "--steps", "6", "--prompts", "1", "--eval-problems", "1", "--sampling.max-tokens", "4"]
    argv = ["run", "grpo", *tiny, "--save-every", "1", "--runs", str(tmp_path)]
    child = subprocess.Popen(
        [sys.executable, "-u", "-m", "posttrain.cli", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("step 2/6"):
            child.send_signal(signal.SIGINT)
            break
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "posttrain run grpo --steps 2" in err and "Traceback" not in err
    said = call(*argv)
    steps = [line for line in said.out.splitlines() if line.startswith("step ")]
    assert said.code == 0 and steps[-1].startswith("step 6/6")
    assert 1 <= len(steps) <= 5  # step 1 was saved; step 2 is told before it is
