"""`posttrain data`, and the options of a run that say which column is what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, call


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


@pytest.fixture
def sums(tmp_path: Path) -> str:
    rows = [{"ask": f"What is {i}+1?", "gold": i + 1, "note": "x"} for i in range(30)]
    return write(tmp_path / "sums.jsonl", [*rows, {"ask": "word " * 2000, "gold": 1, "note": "x"}])


def test_what_a_run_would_understand(sums: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    said = call("data", sums, "--question", "ask", "--answer", "gold", "--model", "pocket", "--out", str(page))
    assert said.code == 0, said.err
    for words in ("columns: ask (the question), gold (the answer); not in the prompt: note", "graded by: numeric",
                  "left out: 1 rows whose prompt has more than 960 tokens", "first prompt: <|user|>What is", "█",
                  "prompt, tokens", "duplicates: 0 of", "contamination: 0 of"):  # fmt: skip
        assert words in said.out, words
    html = page.read_text()
    assert html.count("<svg") == 2 and "&lt;|user|&gt;What is" in html and "<script" not in html and "http" not in html


def test_pairs_are_seen_as_pairs_and_figures_as_json(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "chosen": "good", "rejected": "bad"} for i in range(30)]
    said = call("data", write(tmp_path / "pairs.jsonl", rows), "--json")
    found = json.loads(said.out)
    assert "first pair: good > bad" in found["understood"] and sum(found["rows"].values()) == 30
    assert found["lengths"]["characters"]["preferred answer"]["max"] == 4
    picture = tmp_path / "p.svg"
    said = call("data", str(tmp_path / "pairs.jsonl"), "--stream", "--out", str(picture))
    assert said.code == 0, said.err
    assert "read from the disk" in said.out and picture.read_text().startswith(
        '<svg xmlns="http://www.w3.org/2000/svg"'
    )


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "no question column; it has 'ask', 'gold', 'note'; add --question COLUMN"),
        (["--question", "aks"], "no column 'aks'; did you mean 'ask'? it has: ask, gold, note"),
        (["--question", "ask", "--out", "page.txt"], "a page is .html"),
        (["--question", "ask", "--out", "no/such/folder.html"], "cannot write no/such/folder.html"),
        (["--chosen", "ask"], "no rejected column"),
        (["--question", "ask", "--model", "pockett"], "no model named 'pockett'"),
    ],
)
def test_mistakes_are_one_sentence(sums: str, argv: list[str], sentence: str) -> None:
    said = call("data", sums, *argv)
    assert said.code == 2 and sentence in said.err and "Traceback" not in said.err


def test_a_run_says_what_it_understood_and_takes_the_columns_as_options(sums: str, tmp_path: Path) -> None:
    argv = ["run", "grpo", *SMALL, "--runs", str(tmp_path), "--task", sums, "--question", "ask", "--answer", "gold"]
    said = call(*argv, "--system", "Be brief.")
    assert said.code == 0, said.err
    assert "columns: ask (the question), gold (the answer); not in the prompt: note" in said.out
    assert (
        "first prompt: <|system|>Be brief.<|end|><|user|>What is" in said.out
        and "<think>" not in said.out.split("step 1/2")[0]
    )
    assert "left out: 1 rows whose prompt has more than 1,000 tokens" in said.out
    said = call(*argv)
    assert said.code == 2 and 'system was "Be brief.", is now ""' in said.err
    said = call("run", "grpo", *SMALL, "--runs", str(tmp_path), "--task", "arithmetic", "--question", "ask")
    assert said.code == 2 and "the task arithmetic has no option 'question'" in said.err


def test_a_stream_does_not_call_rows_duplicates_that_follow_a_held_out_one(tmp_path: Path) -> None:
    rows = [{"question": f"What is {i}+1?", "answer": i} for i in range(60)]
    found = json.loads(call("data", write(tmp_path / "s.jsonl", rows), "--stream", "--json").out)
    assert found["duplicates"]["train"] == 0 and found["rows"] == {"train": 54, "test": 6}
    twice = json.loads(call("data", write(tmp_path / "t.jsonl", rows[:30] * 2), "--stream", "--json").out)
    assert twice["duplicates"]["train"] > 10
