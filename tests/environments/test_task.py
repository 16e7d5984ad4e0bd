"""One name space: school, reasoning-gym, public sets and files."""

from __future__ import annotations

import json

import pytest

from posttrain.core.errors import UserError
from posttrain.environments.task import names, task

ROWS = [{"question": f"What is {i}+1?", "answer": str(i + 1)} for i in range(30)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    return path


@pytest.mark.parametrize("name", ["arithmetic", "school/arithmetic", "word-problems", "word_problems"])
def test_school(name):
    env = task(name, level=2, think=False, seed=1)
    assert env.name.endswith("-2-direct")
    assert env.grade(env.prompt(0), str(env.prompt(0).answer)) == 1.0


@pytest.mark.parametrize("name", ["reasoning-gym/chain_sum", "rg/chain_sum", "rg/chain-sum", "reasoning_gym/chain_sum"])
def test_reasoning_gym(name):
    pytest.importorskip("reasoning_gym")
    env = task(name, size=10, seed=2, max_terms=3)
    assert env.name == "reasoning-gym/chain_sum"
    assert "<think>" in task(name, size=10, think=True).prompt(0).last


def test_a_file(file):
    env = task(str(file), think=True, suffix=" Be brief.", reward="exact_match", seed=3)
    assert env.name == "sums"
    assert " Be brief.\nThink" in env.prompt(0).last
    assert env.reward.name == "exact-match"
    assert task(str(file), question="question", answer="answer").grade(env.prompt(0), env.prompt(0).answer) == 1.0
    assert task(str(file.parent / "sums.jsonl"), test=str(file)).size("train") == 0  # all of it is in the test set


def test_a_preset(tmp_path):
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    for split, rows in (("train", ROWS[:20]), ("test", ROWS[20:])):
        import gzip

        text = "".join(json.dumps(r) + "\n" for r in rows)
        (folder / f"{split}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("gsm8k", "data/gsm8k"):
        env = task(name, data=str(tmp_path))
        assert (env.size("train"), env.size("test")) == (20, 10)
        assert env.reward.name == "numeric"


@pytest.mark.parametrize(
    ("spec", "options", "told"),
    [
        ("arithmetc", {}, "did you mean 'arithmetic'"),
        ("gsm8", {}, "did you mean 'gsm8k'"),
        ("school/arithmetc", {}, "did you mean 'school/arithmetic'"),
        ("data/gsm8", {}, "did you mean 'data/gsm8k'"),
        ("arithmetic", {"levle": 3}, "did you mean 'level'"),
        ("arithmetic", {"level": 99}, "1 to 6"),
        ("arithmetic", {"data": "x"}, "no option 'data'"),
        ("nowhere.jsonl", {}, "no data file at nowhere.jsonl"),
        ("nowhere.jsonl", {"questoin": "q"}, "did you mean 'question'"),
        ("nowhere.jsonl", {"level": 3}, "no option 'level'"),
        ("", {}, "no task named"),
        ("qqqqqqqqqqqq", {}, "no task named"),
    ],
)
def test_wrong_names_and_options(spec, options, told):
    with pytest.raises(UserError, match=told):
        task(spec, **options)


def test_wrong_names_of_reasoning_gym():
    pytest.importorskip("reasoning_gym")
    with pytest.raises(UserError, match="did you mean 'rg/chain_sum'"):
        task("rg/chain_sm")
    with pytest.raises(UserError, match="no levels"):
        task("rg/chain_sum", level=2)
    with pytest.raises(UserError, match="did you mean 'reasoning-gym/"):
        task("reasoning-gim/chain_sum")


def test_an_option_left_at_none_is_not_given():
    assert task("arithmetic", level=None, data=None).name.startswith("school-arithmetic")


def test_names_are_all_tasks():
    listed = names()
    assert "arithmetic" in listed and "gsm8k" in listed and "data/countdown" in listed
    assert len(listed) == len(set(listed))


def test_a_school_name_wins_over_a_data_set():
    assert task("countdown").name.startswith("school-")
