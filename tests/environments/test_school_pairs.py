"""The preference pairs that ship: what their script writes, each preferred by its rule, learnable by the built-in model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from examples.make_pairs import FILE, FOLDER, LISTS, ROWS, labels, lists, pairs
from posttrain.core.answers import final_answer
from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.environments.language.courtesy import utility
from posttrain.environments.preferences import preferences
from posttrain.environments.presets import SHIPPED, pair_set
from posttrain.environments.task import default_task, pair_task, task

ROWS_THERE = [json.loads(line) for line in FILE.read_text().splitlines()]


def test_the_file_is_what_the_script_writes() -> None:
    assert SHIPPED["school_pairs"] == FILE and pairs() == ROWS_THERE
    assert FILE.stat().st_size < 100_000 and Counter(r["rule"] for r in ROWS_THERE) == ROWS


def there(name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


def test_lists_and_labels_are_what_the_script_writes() -> None:
    assert lists() == there("school_lists") and labels() == there("school_labels")
    assert {name: SHIPPED[name].stat().st_size < 100_000 for name in SHIPPED} == dict.fromkeys(SHIPPED, True)


def test_lists_are_scored_by_their_rules() -> None:
    rows = there("school_lists")
    assert Counter(r["rule"] for r in rows) == LISTS
    for r in rows:
        by_score = [t for _, t in sorted(zip(r["scores"], r["responses"], strict=True))]
        assert len(set(r["scores"])) == len(r["scores"]) > 2
        if r["rule"] == "right":
            cut, wrong, right = map(final_answer, by_score)
            assert not cut and wrong and right and wrong != right
        else:
            ask = Prompt.text("", r["prompt"], act="", about="")
            worth = [utility(ask, t) for t in by_score]
            assert worth == sorted(worth)


def test_labels_are_one_answer_of_each_pair() -> None:
    rows, both = there("school_labels"), {r["prompt"]: r for r in ROWS_THERE}
    assert all(r["completion"] == both[r["prompt"]]["chosen" if r["label"] else "rejected"] for r in rows)
    assert len(rows) == len(both) and 0.45 < sum(r["label"] for r in rows) / len(rows) < 0.55


def test_the_wheel_carries_the_pairs() -> None:
    assert '"environments/pairs/*"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()


def test_a_right_answer_is_preferred_to_a_wrong_one() -> None:
    """Both are finished and worked out; they end in different results."""
    for r in (r for r in ROWS_THERE if r["rule"] == "right"):
        good, bad = final_answer(r["chosen"]), final_answer(r["rejected"])
        assert good and bad and good != bad, r
    plain = [
        r for r in ROWS_THERE if r["rule"] == "right" and r["prompt"].startswith("What is ") and "+" in r["prompt"]
    ]
    sums = [r for r in plain if set(r["prompt"].split()[2].rstrip("?")) <= set("0123456789+")]
    assert sums  # those that this test can work out by itself
    for r in sums:
        want = sum(map(int, r["prompt"].split()[2].rstrip("?").split("+")))
        assert final_answer(r["chosen"]) == str(want) != final_answer(r["rejected"])


def test_a_finished_answer_is_preferred_to_one_that_breaks_off() -> None:
    for r in (r for r in ROWS_THERE if r["rule"] == "finished"):
        assert final_answer(r["chosen"]) and not final_answer(r["rejected"]) and r["chosen"].startswith(r["rejected"])


def test_the_polite_answer_is_liked_better() -> None:
    for r in (r for r in ROWS_THERE if r["rule"] == "polite"):
        ask = Prompt.text("", r["prompt"], act="", about="")
        assert utility(ask, r["chosen"]) > utility(ask, r["rejected"]), r


def test_test_questions_are_no_training_questions() -> None:
    data = pair_set("school_pairs")
    train, test = ({p.prompt.last for p in data.pairs(s)} for s in ("train", "test"))
    assert len(train) + len(test) == len(ROWS_THERE) and not train & test and len(test) >= 40
    assert {p.prompt.info["rule"] for p in data.pairs("test")} == set(ROWS)
    assert preferences(FILE, name="school_pairs").splits == data.splits


def test_named_and_by_default() -> None:
    env = pair_task("school-pairs")
    assert env.name == "school_pairs" and env.prompt(0).info["chosen"]
    assert default_task("arithmetic", "pairs") == "school_pairs"
    assert default_task("arithmetic", "sample") == "arithmetic" and default_task("hh_rlhf", "pairs") == "hh_rlhf"
    with pytest.raises(UserError, match="school_pairs holds preferences"):
        task("school_pairs")
    with pytest.raises(UserError, match="use school_pairs"):
        pair_task("sorting")
