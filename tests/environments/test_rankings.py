"""Ranked lists in every layout, with every kind of mistake."""

from __future__ import annotations

import math

import pytest

from posttrain.core.errors import UserError
from posttrain.environments.conversions import paired
from posttrain.environments.feedback import PreferenceFiles, feedback
from posttrain.environments.preferences import Reading
from posttrain.environments.rankings import by_place, by_rank
from posttrain.environments.task import pair_task
from tests.environments.test_data import jsonl

TEST = [{"prompt": "t", "responses": ["a", "b"], "scores": [1, 0]}]


def env_of(*rows, test=TEST, want="lists", skip_bad=False, **how):
    return feedback(PreferenceFiles(list(rows), test, how=Reading(**how), skip_bad=skip_bad), want)


def ranked(row, **how):
    (prompt,) = env_of(row if "instruction" in row else {"prompt": "q"} | row, **how).train
    return [(a["text"], a["score"]) for a in prompt.info["ranked"]]


@pytest.mark.parametrize(
    "row",
    [
        {"responses": ["x", "y", "z"], "scores": [0.1, 0.9, 0.5]},
        {"completions": ["x", "y", "z"], "rewards": ["0.1", 0.9, 0.5]},
        {"candidates": [{"text": "x"}, {"text": "y"}, {"text": "z"}], "ratings": [0.1, 0.9, 0.5]},
        {"outputs": {"m": "x", "n": "y", "o": "z"}, "scores": {"n": 0.9, "m": 0.1, "o": 0.5}},
        {
            "responses": [
                {"response": "x", "score": 0.1},
                {"response": "y", "rating": 0.9},
                {"content": "z", "reward": 0.5},
            ]
        },
        {
            "responses": [
                {"role": "assistant", "content": t, "score": s} for t, s in (("x", 0.1), ("y", 0.9), ("z", 0.5))
            ]
        },
    ],
)
def test_scores(row):
    assert ranked(row) == [("y", 0.9), ("z", 0.5), ("x", 0.1)]


@pytest.mark.parametrize(
    "row",
    [
        {"responses": ["x", "y", "z"], "ranks": [3, 1, 2]},  # the rank of each
        {"responses": ["x", "y", "z"], "ranks": ["2", 0, 1]},
        {"responses": ["x", "y", "z"], "ranking": [1, 2, 0]},  # the places, best first
        {"responses": ["x", "y", "z"], "ranking": [2, 3, 1]},
        {"answers": [{"answer": "x", "rank": 3}, {"answer": "y", "rank": 1.0}, {"answer": "z", "rank": 2}]},  # Nectar
    ],
)
def test_ranks_become_minus_the_place(row):
    assert ranked(row) == [("y", 0.0), ("z", -1.0), ("x", -2.0)]


def test_ranks_and_places_are_inverse_to_each_other():
    # answer 0 is third, answer 1 first, answer 2 second; as places, best first: 1, 2, 0
    assert by_rank([3, 1, 2]) == by_place([1, 2, 0]) == [-2.0, 0.0, -1.0]
    assert by_rank([2, 3, 1]) == by_place([2, 0, 1]) == [-1.0, -2.0, 0.0]


def ultra(helpful, honest, overall=None, text="a"):
    rated = {
        "helpfulness": {"Rating": helpful, "Rationale": "."},
        "honesty": {"Rating": honest},
        "truthfulness": {"Rating": "N/A"},
    }
    return {"model": "m", "response": text, "annotations": rated} | (
        {} if overall is None else {"overall_score": overall}
    )


def test_ultrafeedback_as_a_whole_by_an_aspect_and_by_their_mean():
    row = {"instruction": "q", "completions": [ultra("5", "1", 6.0, "x"), ultra("2", "5", 4.0, "y")]}
    assert ranked(row) == [("x", 6.0), ("y", 4.0)]
    assert ranked(row, aspect="honesty") == [("y", 5.0), ("x", 1.0)]
    assert ranked(row, aspect="mean") == [("y", 3.5), ("x", 3.0)]  # (5 + 1) / 2 and (2 + 5) / 2
    bare = {"instruction": "q", "completions": [ultra("5", "1", text="x"), ultra("2", "5", text="y")]}
    assert ranked(bare) == [("y", 3.5), ("x", 3.0)]
    (prompt,) = env_of(row).train
    assert prompt.last == "q" and prompt.info["ranked"][0]["aspects"] == {"helpfulness": 5.0, "honesty": 1.0}
    with pytest.raises(UserError, match="no answer is rated by 'wit'; aspects here are: helpfulness, honesty"):
        env_of(row, aspect="wit")


def test_several_good_answers_and_several_bad_ones():
    row = {"prompt": "q", "chosen": ["a", "b"], "rejected": ["c", "d"]}
    assert ranked(row) == [("a", 1.0), ("b", 1.0), ("c", 0.0), ("d", 0.0)]
    every = env_of(row, want="pairs", pairs="all").train
    assert {(p.info["chosen"], p.info["rejected"]) for p in every} == {(a, b) for a in "ab" for b in "cd"}
    (one,) = env_of(row, want="pairs").train  # the first of the best and the first of the worst, as the file has them
    assert (one.info["chosen"], one.info["rejected"]) == ("a", "c")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"responses": ["a", "b"], "scores": [1]}, "one for each of 2 answers, got 1 of them"),
        ({"responses": ["a", "b"], "scores": [1, "best"]}, "a score is a finite number"),
        ({"responses": ["a", "b"], "scores": [1, math.inf]}, "a score is a finite number"),
        ({"responses": ["a", "b", "c"], "ranks": [1, 1, 2]}, "ranks are 1, 1, 2; they are 1 to 3, each once"),
        ({"responses": ["a", "b"], "ranks": [1, None]}, "each once"),
        ({"responses": ["a", "b"], "ranking": [0, 2]}, "names each of 2 answers once"),
        ({"responses": "a", "scores": [1]}, "no chosen column|a list of answers"),
        ({"responses": [1, 2], "scores": [1, 2]}, "a list of messages"),
        ({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}], "responses": ["a", "b"],
          "scores": [1, 2]}, "nobody is left to answer"),
    ],
)  # fmt: skip
def test_bad_lists(row, told):
    with pytest.raises(UserError, match=told):
        env_of({"prompt": "q"} | row)


def test_a_file_without_scores_says_what_is_missing(tmp_path):
    rows = [{"prompt": "q", "responses": ["a", "b"]}]
    with pytest.raises(UserError, match="nothing says which answer is better"):
        pair_task(str(jsonl(tmp_path / "l.jsonl", rows)), kind="lists")
    with pytest.raises(UserError, match=r"add responses='COLUMN' in brackets"):
        pair_task(str(jsonl(tmp_path / "m.jsonl", [{"prompt": "q", "texts": ["a", "b"]}])), kind="lists")


def test_what_says_nothing_is_left_out_and_counted():
    env = env_of(
        {"prompt": "1", "responses": ["a", "b", "c"], "scores": [1, None, 0]},
        {"prompt": "2", "responses": ["a", "b"], "scores": [1, math.nan]},
        {"prompt": "3", "responses": ["a", "b", "c"], "scores": [2, 2, 2]},
        {"prompt": "4", "responses": ["a", "a ", "b"], "scores": [1, 3, 2]},
        {"prompt": "5", "responses": ["a", "b", ""], "scores": [2, 2, 1]},
    )
    assert [p.last for p in env.train] == ["1", "4", "5"]
    assert {k: n for k, n in env.left_out.items() if n} == {
        "answers without a score": 2, "answers that stand twice in their list": 1,
        "lists of fewer than two answers with a score": 1, "lists whose answers all have the same score": 1,
    }  # fmt: skip
    assert [a["text"] for a in env.train[1].info["ranked"]] == ["a", "b"]  # of the two the better one: 3 > 2
    told = "\n".join(env.understood.notes)
    assert "equal scores: 1 of 4 lists" in told and "empty: 1 answers" in told
    with pytest.raises(
        UserError, match="nothing is left to learn from; the file has lists whose answers all have the same score"
    ):
        feedback(PreferenceFiles([{"prompt": "3", "responses": ["a", "b"], "scores": [2, 2]}]), "lists")


def test_a_question_of_the_test_split_is_not_trained_on():
    env = env_of(
        {"prompt": "t", "responses": ["x", "y"], "scores": [1, 0]},
        {"prompt": "u", "responses": ["x", "y"], "scores": [1, 0]},
    )
    assert [p.last for p in env.train] == ["u"] and env.left_out["training rows that are in the test set"] == 1


def test_pairs_of_a_list():
    (prompt,) = env_of({"prompt": "q", "responses": ["x", "y", "z", "w"], "scores": [1, 3, 2, 2]}).train
    (best,) = paired(prompt)
    assert (best.info["chosen"], best.info["rejected"], best.id) == ("y", "x", prompt.id)
    assert (best.info["score_chosen"], best.info["score_rejected"]) == (3.0, 1.0) and "ranked" not in best.info
    every = [(p.info["chosen"], p.info["rejected"]) for p in paired(prompt, every=True)]
    assert every == [("y", "z"), ("y", "w"), ("y", "x"), ("z", "x"), ("w", "x")]  # z and w are as good
    assert len({p.id for p in paired(prompt, every=True)}) == 5
