"""`generate`: a file of answers that is the same whenever it was stopped, and that training reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.commands import generate
from tests.cli.conftest import call
from tests.openai_server import Fake


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    rows = [{"question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(7)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_killed_command_ends_with_the_same_file(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "AT_ONCE", 4)  # two prompts at a time
    argv = (
        "generate",
        "--task",
        f"{questions}(think=False)",
        "--num-generations",
        "2",
        "--max-tokens",
        "5",
        "--json",
        "--out",
    )
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert json.loads(call(*argv, str(whole)).out) == {"out": str(whole), "written": 14, "kept": 0, "missing": 0}
    assert len({(r["id"], r["sample"]) for r in rows(whole)}) == 14
    call(*argv, str(cut))
    lines = whole.read_bytes().splitlines(keepends=True)
    cut.write_bytes(b"".join(lines[:5]) + lines[5][:20])  # killed in the middle of the sixth row
    again = json.loads(call(*argv, str(cut)).out)
    assert (again["written"], again["kept"]) == (9, 5) and cut.read_bytes() == whole.read_bytes()
    assert json.loads(call(*argv, str(cut)).out)["written"] == 0
    more = call(*[*argv[:4], "3", *argv[5:]], str(cut))  # more answers: those that are there stay
    assert json.loads(more.out)["kept"] == 14
    assert [r for r in rows(cut) if r["sample"] < 2] == rows(whole) and len(rows(cut)) == 21


def test_other_settings_are_another_file(questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    argv = ("generate", "--task", f"{questions}(think=False)", "--out", str(out), "--problems", "1")
    assert call(*argv, "--max-tokens", "4").code == 0
    said = call(*argv, "--max-tokens", "5")
    assert said.code == 2 and "max_tokens was 4, is now 5" in said.err and "--fresh" in said.err
    assert call(*argv, "--max-tokens", "5", "--fresh").code == 0 and len(rows(out)) == 1
    (tmp_path / "mine.jsonl").write_text('{"precious": 1}\n')
    said = call("generate", "--task", str(questions), "--out", str(tmp_path / "mine.jsonl"))
    assert said.code == 2 and "does not say how it was made" in said.err
    assert (tmp_path / "mine.jsonl").read_text() == '{"precious": 1}\n'


def test_what_is_written_can_be_learned_from(questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    made = call("generate", "--task", f"{questions}(think=False)", "--num-generations", "2", "--max-tokens", "5", "--reward", "task", "--out", str(out))  # fmt: skip
    assert made.code == 0, made.err
    first = rows(out)[0]
    assert first["reward"] in (0.0, 1.0) and len(first["tokens"]) == len(first["logp"]) <= 5
    small = ("--steps", "1", "--prompts", "2", "--eval-problems", "0", "--runs", str(tmp_path), "--quiet")
    said = call("run", "topr", "--rollout", "logged", "--task", str(out), "--name", "logged", *small)
    assert said.code == 0, said.err
    said = call("run", "sft", "--task", f"{out}", "--name", "sft", *small)
    assert said.code == 0, said.err


def test_answers_that_did_not_come_are_asked_for_again(questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "remote.jsonl"
    fake = Fake(lambda body: "hello", *[(400, {"error": {"message": "no"}})] * 2)
    with fake.listening() as url:
        argv = ("generate", "--url", url, "--task", str(questions), "--out", str(out), "--concurrency", "1", "--json")
        assert json.loads(call(*argv).out) | {"out": ""} == {"out": "", "written": 5, "kept": 0, "missing": 2}
        assert json.loads(call(*argv).out)["written"] == 2 and len(fake.asked) == 7 + 7
    assert [r["response"] for r in rows(out)] == ["hello"] * 7 and "tokens" not in rows(out)[0]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--num-generations", "0"], "--num-generations is 0"),
        (["--num-generations", "2", "--temperature", "0"], "all 2 answers are the same"),
        (["--out", "/"], "it is a folder"),
    ],
)
def test_mistakes(questions: Path, tmp_path: Path, argv: list[str], sentence: str) -> None:
    said = call("generate", "--task", str(questions), "--out", str(tmp_path / "x.jsonl"), *argv)
    assert said.code == 2 and sentence in said.err


def test_line_separators_long_prompts_and_other_prompts(tmp_path: Path) -> None:
    file, out = tmp_path / "q.jsonl", tmp_path / "a.jsonl"
    some = [{"question": f"What is\u2028{i}\x85+1?", "answer": "1"} for i in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*some, {"question": "a b " * 900, "answer": "1"}]))
    argv = ("generate", "--task", str(file), "--out", str(out), "--max-tokens", "4")
    said = call(*argv)
    assert said.code == 0 and "left out: 1 rows whose prompt has more than 1,020 tokens" in said.out, said.err
    told = [json.loads(line) for line in out.read_text().split("\n")[:-1]]
    assert {r["prompt"][0]["content"] for r in told} == {r["question"] for r in some}
    said = call(*argv, "--system", "Be brief.")
    assert said.code == 2 and 'system was not set, is now "Be brief."' in said.err
    file.write_text(json.dumps({"question": "Another?", "answer": "2"}) + "\n")
    said = call(*argv)
    assert said.code == 2 and "contents." in said.err and "was made with other settings" in said.err
