"""Lists and labels from the command line: what a run and `posttrain data` say of them, conversions, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import call

SMALL = ["--steps", "2", "--prompts", "4", "--eval-problems", "8"]


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


@pytest.fixture
def lists(tmp_path: Path) -> str:
    rows = [
        {"prompt": f"What is {i}+1?", "responses": [str(i), str(i + 1), "no"], "scores": [1, 2, 0]} for i in range(40)
    ]
    return write(tmp_path / "lists.jsonl", rows)


@pytest.fixture
def votes(tmp_path: Path) -> str:
    def row(i: int, who: str, turned: bool = False) -> dict[str, object]:
        good, bad = f"{i + 1}, as asked", str(i)
        return {
            "prompt": f"What is {i}+1?",
            "chosen": bad if turned else good,
            "rejected": good if turned else bad,
            "annotator": who,
        }

    return write(
        tmp_path / "votes.jsonl",
        [row(i, who, who == "cid" and i < 10) for i in range(30) for who in ("ann", "bob", "cid")],
    )


def test_a_method_of_lists_and_one_of_labels_work_without_a_task(tmp_path: Path) -> None:
    for rollout, said in (("lists", "steps of 4 lists"), ("labels(mismatched=True)", "steps of 4 answers")):
        run = call("run", "sft", "--rollout", rollout, *SMALL, "--runs", str(tmp_path))
        assert run.code == 0, run.err
        assert said in run.out and "ranked right" in run.out and f"school_{rollout[:6].rstrip('(')}" in run.out


def test_a_run_says_what_it_converted(lists: str, tmp_path: Path) -> None:
    said = call("run", "dpo", *SMALL, "--task", lists, "--runs", str(tmp_path))
    assert said.code == 0, said.err
    assert "converted: each list became one pair" in said.out and "first pair: 1 > no" in said.out
    said = call("run", "dpo", *SMALL, "--task", f"{lists}(pairs='all')", "--runs", str(tmp_path), "--name", "all")
    assert "one of every two answers with different scores" in said.out
    said = call(
        "run", "sft", "--rollout", "labels", *SMALL, "--task", lists, "--runs", str(tmp_path), "--name", "labels"
    )
    assert "of each list the best answer became a good one" in said.out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["dpo", "--task", "school_labels"], "no question has one of both"),
        (["sft", "--rollout", "lists", "--reward", "numeric"], "does not use --reward"),
        (["sft", "--rollout", "labels", "--level", "2"], "learns from good and bad answers, which have no --level"),
        (["sft", "--rollout", "labels", "--task", "arithmetic"], "'arithmetic' is no set of preference labels"),
        (["sft", "--rollout", "labels(mismatched=True)", "--prompts", "1"], "use --prompts 2 or more"),
        (["grpo", "--task", "school_lists"], "school_lists holds preferences"),
    ],
)
def test_mistakes_are_one_sentence(argv: list[str], sentence: str, tmp_path: Path) -> None:
    said = call("run", *argv, "--steps", "2", "--runs", str(tmp_path))
    assert said.code == 2 and sentence in said.err and "Traceback" not in said.err


def test_data_shows_lists(lists: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    said = call("data", lists, "--out", str(page), "--model", "pocket")
    assert said.code == 0, said.err
    for words in ("responses (the answers), scores (their scores)", "learned from: ranked lists", "first list: ", "best answer, tokens",
                  "lists: 40 of 3 answers, 120 in all; 0 have equal scores", "preferred less other lengths in tokens"):  # fmt: skip
        assert words in said.out, words
    assert page.read_text().count("<svg") == 4 and "<h2>Preferences</h2>" in page.read_text()


def test_data_shows_who_agrees(votes: str, tmp_path: Path) -> None:
    said = call("data", votes, "--json")
    found = json.loads(said.out)["preferences"]
    # 30 comparisons by three; cid differs in the first 10: majorities 10 x 2/3 and 20 x 1, pairs of votes 10 x 1/3 and 20 x 1
    assert found["annotators"] == 3 and found["contradictory"] == 10 and found["agreement"]["judged"] == 30
    assert found["agreement"]["majority"] == pytest.approx((10 * 2 / 3 + 20) / 30)
    assert found["agreement"]["agreed"] == pytest.approx((10 / 3 + 20) / 30)
    assert found["longer_wins"] == {"share": pytest.approx(80 / 90), "of": 90, "equal": 0}
    merged = json.loads(call("data", f"{votes}(merge=True)", "--json").out)["preferences"]
    assert merged["of"] == merged["soft"] == 30 and merged["mean_preferred"] == pytest.approx((10 * 2 / 3 + 20) / 30)
    assert "probability of the preference, percent" in call("data", f"{votes}(merge=True)").out
    assert call("data", votes, "--save", "--runs", str(tmp_path)).code == 0
    (sheet,) = (tmp_path / "sheets").glob("*.json")
    assert any("Krippendorff's alpha" in line for line in json.loads(sheet.read_text())["found"]["understood"])


def test_data_shows_good_and_bad_answers(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"q{i}", "completion": "a good one" if i % 2 else "bad", "label": bool(i % 2)} for i in range(30)
    ]
    said = call("data", write(tmp_path / "l.jsonl", rows))
    assert said.code == 0, said.err
    for words in (
        "good: 50% of 30 answers; 0 are called both",
        "a good answer is longer than a bad one in 100.0% of 225 comparisons",
    ):
        assert words in said.out, words


def test_a_model_is_measured_on_lists_and_on_labels_of_one_question(lists: str, tmp_path: Path) -> None:
    said = call("eval", "--model", "pocket", "--task", lists, "--json")
    assert said.code == 0 and json.loads(said.out)["pairs"] == 40, said.err
    both = [{"prompt": f"q{i // 2}", "completion": f"a{i}", "label": i % 2} for i in range(30)]
    said = call("eval", "--model", "pocket", "--task", write(tmp_path / "l.jsonl", both), "--json")
    assert said.code == 0 and json.loads(said.out)["pairs"] == 15, said.err
