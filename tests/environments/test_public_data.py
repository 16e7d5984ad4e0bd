"""Preference pairs in every layout, and the public files where they are."""

from __future__ import annotations

import gzip
import json

import pytest

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.environments.fields import dialogue, messages
from posttrain.environments.preferences import preferences
from posttrain.environments.presets import PAIRS, QUESTIONS, data_folder, pair_set, question_set
from tests.environments.test_data import FOLDER

# ---- preference pairs

HH = "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: a joke?\n\nAssistant:"


def test_dialogue():
    said = [("user", "hi"), ("assistant", "hello"), ("user", "a joke?")]
    assert [(m["role"], m["content"]) for m in dialogue(HH)] == said
    assert dialogue("plain") == ({"role": "user", "content": "plain"},)
    assert messages("Human: x\n\nAssistant: y")[1] == {"role": "assistant", "content": "y"}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": HH, "chosen": " ha", "rejected": " no"},
        {"chosen": HH + " ha", "rejected": HH + " no"},  # whole dialogues, as the official files have them
        {
            "conversations": [
                {"from": who, "value": said} for who, said in (("human", "hi"), ("gpt", "hello"), ("human", "a joke?"))
            ],
            "chosen": {"from": "gpt", "value": "ha"},
            "rejected": {"from": "gpt", "value": "no"},
        },
        {"chosen": [*dialogue(HH), {"role": "assistant", "content": "ha"}],
         "rejected": [*dialogue(HH), {"role": "assistant", "content": "no"}]},
    ],
)  # fmt: skip
def test_pairs_in_every_layout(row):
    pair = preferences([row], test=[{"prompt": "t", "chosen": "a", "rejected": "b"}]).pair(0)
    assert [m["content"] for m in pair.prompt.content] == ["hi", "hello", "a joke?"]
    assert (pair.chosen, pair.rejected) == ("ha", "no")


def test_an_answer_that_begins_with_human_is_an_answer():
    pair = preferences(
        [{"prompt": "x", "chosen": "Human: no", "rejected": "b"}],
        test=[{"prompt": "t", "chosen": "a", "rejected": "b"}],
    ).pair(0)
    assert pair.chosen == "Human: no"


def test_pairs_that_say_nothing_are_left_out():
    rows = [{"prompt": f"q{i}", "chosen": "a", "rejected": "a" if i == 3 else "b"} for i in range(20)]
    made = preferences(rows)
    assert made.left_out["pairs of two equal answers"] == 1 and made.size("train") + made.size("test") == 19
    with pytest.raises(UserError, match="both answers are the same"):
        preferences([{"prompt": "q", "chosen": "a", "rejected": "a"}])


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": "q", "chosn": "a", "rejected": "b"}, "did you mean 'chosn'"),
        ({"prompt": "q", "chosen": "a"}, "no rejected column"),
        ({"prompt": "q", "chosen": None, "rejected": "b"}, "row 1: no 'chosen'"),
        ({"prompt": "q", "chosen": "", "rejected": ""}, "both answers are empty"),
        ({"chosen": "a", "rejected": "b"}, "no prompt column"),
        ({"chosen": HH + " a", "rejected": "\n\nHuman: other\n\nAssistant: b"}, "same dialogue"),
        ({"prompt": "q", "chosen": [{"role": "user", "content": "x"}], "rejected": "b"}, "ends with"),
    ],
)
def test_bad_pairs(row, told):
    with pytest.raises(UserError, match=told):
        preferences([row])


# ---- the public files, where they are

here = pytest.mark.skipif(not FOLDER.is_dir(), reason="no data folder; set POSTTRAIN_DATA")
SIZES = {"gsm8k": (7473, 1319), "math": (4500, 500), "countdown": (10235, 1024), "knights_knaves": (4500, 500)}


@here
@pytest.mark.parametrize("name", QUESTIONS)
def test_question_sets(name):
    if QUESTIONS[name].layout.reward == "math":
        pytest.importorskip("math_verify")
    env = question_set(name, FOLDER)
    if name in SIZES:
        assert (env.size("train"), env.size("test")) == SIZES[name]
    assert env.validate(25) == []
    train = {p.last for p in env.splits["train"]}
    assert not train & {p.last for p in env.splits["test"]}


@here
def test_levels_of_a_set():
    pytest.importorskip("math_verify")
    env = question_set("math", FOLDER, level=5)
    assert {env.prompt(i).info["level"] for i in range(50)} == {"Level 5"}
    with pytest.raises(UserError, match="levels 1 to 5"):
        question_set("math", FOLDER, level=6)
    with pytest.raises(UserError, match="no levels"):
        question_set("gsm8k", FOLDER, level=1)


@here
def test_the_published_gsm8k_solutions_are_graded_as_their_authors_did():
    """5276 solutions of four models with the authors' own labels; the answer stands after `A:`."""
    text = gzip.decompress((FOLDER / "gsm8k" / "model_solutions.jsonl.gz").read_bytes()).decode()
    rows = [json.loads(line) for line in text.split("\n") if line]
    env = question_set("gsm8k", FOLDER)
    agreed = sum(
        (env.grade(Prompt.text("x", r["question"], r["ground_truth"].rpartition("A:")[2]), r["solution"]) == 1.0)
        == r["is_correct"]
        for r in rows
    )
    assert agreed == len(rows)


@here
@pytest.mark.parametrize("name", PAIRS)
def test_pair_sets(name):
    made = pair_set(name, FOLDER)
    pairs = [made.pair(i) for i in range(50)]
    assert all(p.chosen != p.rejected and p.prompt.content[-1]["role"] != "assistant" for p in pairs)
    asked = {repr(p.prompt.content) for p in made.pairs("test")}
    assert asked and not asked & {repr(p.prompt.content) for p in made.pairs("train")}


@here
def test_hh_dialogues_become_messages():
    roles = [m["role"] for p in pair_set("hh_rlhf", FOLDER).pairs("test") for m in p.prompt.content]
    assert set(roles) == {"user", "assistant"}
    assert roles.count("assistant") > 2000  # multi-turn


def test_the_data_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv("POSTTRAIN_DATA", raising=False)
    with pytest.raises(UserError, match="POSTTRAIN_DATA"):
        data_folder()
    with pytest.raises(UserError, match="no data folder"):
        data_folder(tmp_path / "none")
    monkeypatch.setenv("POSTTRAIN_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    with pytest.raises(UserError, match="no data file"):
        question_set("gsm8k")
    with pytest.raises(UserError, match="did you mean 'gsm8k'"):
        question_set("gsm8")
    with pytest.raises(UserError, match="did you mean 'hh_rlhf'"):
        pair_set("hh_rlf")
