"""`eval` and `chat`: models and runs by name, figures that add up, conversations that end."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from posttrain.commands.chat import Conversation, converse
from posttrain.core.sampling import Sampling
from tests.cli.conftest import Said, call

FEW = ["--problems", "4", "--max-tokens", "24"]


def test_eval_table() -> None:
    said = call("eval", "--task", "arithmetic", "--num-generations", "2", *FEW)
    assert said.code == 0
    for words in ("pocket on arithmetic: 4 problems", "accuracy", "pass@1", "pass@2", "next:", "posttrain run grpo"):
        assert words in said.out


def test_eval_json_of_a_run(first_run: Said, runs: Path) -> None:
    said = call("eval", "--model", "grpo-arithmetic", "--runs", str(runs), "--json", *FEW)
    found = json.loads(said.out)
    assert found["task"] == "arithmetic" and found["model"] == "grpo-arithmetic" and found["problems"] == 4
    summary = json.loads((runs / "grpo-arithmetic" / "summary.json").read_text())
    assert found["accuracy"] == summary["accuracy_after"]  # the same weights, problems and draws


@pytest.fixture
def half_graded(tmp_path: Path) -> str:
    """Rows whose gold answer is a number, and some whose grade raises because it is none."""
    rows = [{"question": f"What is {i}+1?", "answer": str(i + 1) if i % 4 else "many"} for i in range(60)]
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"{file}(reward='picky', think=False)"


def test_a_grader_that_raises_is_counted_in_evaluation_as_in_training(
    half_graded: str, parts_file: Path, tmp_path: Path
) -> None:
    small = ("--problems", "200", "--max-tokens", "8", "--use", str(parts_file))
    said = call("eval", "--task", half_graded, *small, "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert 0 < found["failed"] < found["problems"] and "invalid literal for int()" in found["why"]
    said = call("eval", "--task", half_graded, *small)
    assert f"{found['failed']} of {found['problems']} could not be graded" in " ".join(said.out.split())
    run = ("run", "grpo", "--task", half_graded, "--steps", "1", "--prompts", "2", "--num-generations", "2")
    said = call(*run, "--sampling.max-tokens", "8", "--use", str(parts_file), "--runs", str(tmp_path), "--name", "half")
    assert said.code == 0, said.err
    assert f"{found['failed']} of {found['problems']} could not be graded" in " ".join(said.out.split())
    summary = json.loads((tmp_path / "half" / "summary.json").read_text())
    assert summary["ungraded_before"] == summary["ungraded_after"] == found["failed"]


def test_nothing_graded_at_all_is_an_error(parts_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "words.jsonl"
    file.write_text("".join(json.dumps({"question": f"Say {i}", "answer": "many"}) + "\n" for i in range(40)))
    task = f"{file}(reward='picky', think=False)"
    said = call("eval", "--task", task, "--problems", "4", "--max-tokens", "4", "--use", str(parts_file))
    assert said.code == 2 and "not one of" in said.err and "invalid literal" in said.err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["eval", "--num-generations", "4", "--temperature", "0"], "all 4 answers are the same"),
        (["eval", "--problems", "0"], "--problems is 0"),
        (["eval", "--phase", "sft"], "--phase is of a run"),
        (["eval", "--split", "tset"], "invalid choice: 'tset'"),
        (["eval", "--task", "gsm8k"], "POSTTRAIN_DATA"),
        (["chat", "--temperature", "-1", "--say", "hi"], "temperature is -1.0"),
        (["chat", "--model", "nope", "--say", "hi"], "no model named 'nope'"),
    ],
)
def test_mistakes(argv: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTTRAIN_DATA", raising=False)
    said = call(*argv)
    assert said.code == 2 and sentence in said.err


def test_a_run_that_is_not_there(first_run: Said, runs: Path, tmp_path: Path) -> None:
    said = call("chat", "--model", "grpo-arithmetik", "--runs", str(runs), "--say", "hi")
    assert said.code == 2 and "did you mean 'grpo-arithmetic'?" in said.err
    said = call("chat", "--model", "x", "--runs", str(tmp_path), "--say", "hi")
    assert said.code == 2 and "no model named" in said.err
    said = call("chat", "--model", "grpo-arithmetic", "--runs", str(runs), "--phase", "sft", "--say", "hi")
    assert said.code == 2 and "no checkpoint of phase 'sft'" in said.err


def test_one_answer() -> None:
    said = call("chat", "--say", "What is 2+3? Answer only.")
    assert said.code == 0 and said.out.strip() and "next:" in said.err
    again = json.loads(call("chat", "--say", "What is 2+3? Answer only.", "--json").out)
    assert again["answer"] == said.out.strip() and again["ended"]


def test_a_conversation(monkeypatch: pytest.MonkeyPatch, first_run: Said, runs: Path) -> None:
    lines = iter(["What is 2+3? Answer only.", "/new", "What is 1+1? Answer only.", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    said = call("chat", "--model", "grpo-arithmetic", "--runs", str(runs), "--max-tokens", "16")
    assert said.code == 0 and said.out.count("grpo-arithmetic: ") == 2 and "next:" in said.out


def test_an_answer_cannot_act_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Hostile:
        def sample(self, *_: object) -> list[list[SimpleNamespace]]:
            return [[SimpleNamespace(text="5\x1b[2J", truncated=False)]]

    lines = iter(["What is 2+3?", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    converse(Conversation(Hostile(), Sampling()), "mine")
    assert "mine: 5\\x1b[2J\n" in capsys.readouterr().out


def test_the_end_of_input_ends_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", nothing)
    assert call("chat").code == 0


def test_memory_is_what_the_model_sees() -> None:
    """A model that says how many messages it was given: with memory 1 the system, one exchange, and the question."""

    class Counts:
        def sample(self, prompts, n, how, seed, step):
            seen.append([m["content"] for m in prompts[0].content])
            return [[SimpleNamespace(text=f"a{step}", stopped=True)]]

    seen: list[list[str]] = []
    talk = Conversation(Counts(), Sampling(), system="s", memory=1)
    for q in ("q0", "q1", "q2"):
        talk.ask(q)
    assert seen == [["s", "q0"], ["s", "q0", "a0", "q1"], ["s", "q1", "a1", "q2"]]
    forgetful = Conversation(Counts(), Sampling(), memory=0)
    forgetful.ask("x")
    forgetful.ask("y")
    assert seen[-1] == ["y"]
