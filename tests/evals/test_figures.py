"""The figures of an evaluation from answers with known rewards."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.evals.accuracy import score_of
from posttrain.evals.figures import by_column, check_column, figures, predictions
from posttrain.evals.intervals import wilson
from posttrain.evals.pair_figures import answers_of, margins_of, pair_figures


def group(name: str, *graded: tuple[str, float], **info: object) -> Group:
    prompt, none = Prompt.text(name, "?", "2", **info), torch.zeros(3)
    made = [
        Rollout.single(prompt, none.long(), none.long(), none, text=t, reward=x, index=i, stopped=t != "cut")
        for i, (t, x) in enumerate(graded)
    ]
    for r in made:
        r.rewards = {"task": r.reward or 0.0}
    return Group(prompt, made)


def found(groups: list[Group], name: str = "accuracy", by: str = "") -> dict:
    score = score_of([g.rollouts for g in groups], name)
    score.failed = sum(r.failed for g in groups for r in g.rollouts)
    return figures(groups, score, by)


def test_right_answers_are_counted_per_problem() -> None:
    """Two problems of two answers, 1 and 2 right: pass@1 = (1/2 + 1) / 2, pass@2 = 1. Part marks do not pass."""
    groups = [group("a", ("2", 1.0), ("cut", 0.5)), group("b", ("2", 1.0), ("2", 1.0))]
    told = found(groups)
    assert told["accuracy"] == 0.875 and told["ended"] == 0.75 and told["tokens_per_answer"] == 3
    assert told["pass_at_k"]["1"]["mean"] == 0.75 and told["pass_at_k"]["2"]["mean"] == 1.0
    groups[0].rollouts[0].reward = math.nan  # the first problem cannot be counted: the second alone has 2 of 2
    told = found(groups)
    assert told["pass_at_k"]["1"]["mean"] == 1.0 and told["failed"] == 1 and told["accuracy"] == 0.75
    groups[1].rollouts[0].reward = math.nan
    assert found(groups)["pass_at_k"] == {}


def test_a_majority_is_voted_among_four() -> None:
    """Three problems: 3 of 4 say 2 (right), 3 of 4 say 5 (wrong), a tie: maj@4 = (1 + 0 + 1/2) / 3; pass@4 = 1."""
    right, wrong = ("2", 1.0), ("5", 0.0)
    told = found([group("a", right, right, right, wrong), group("b", wrong, wrong, wrong, right), group("c", right, right, wrong, wrong)])  # fmt: skip
    assert told["maj_at_k"]["4"]["mean"] == 0.5 and told["pass_at_k"]["4"]["mean"] == 1.0
    assert "2" not in told["maj_at_k"]


def test_a_reward_that_is_no_grade_has_no_pass_at_k() -> None:
    groups = [group("a", ("x", 0.3), ("y", 1.7)), group("b", ("x", 0.1), ("y", 0.1))]
    told = found(groups, "reward")
    assert told["reward"] == pytest.approx(0.55) and told["pass_at_k"] == {} == told["maj_at_k"]
    assert "Student t" in told["interval_by"]
    assert found([group("a", ("x", 0.0), ("y", 1.0))], "reward")["pass_at_k"]["2"]["mean"] == 1.0


def test_a_table_by_a_column() -> None:
    groups = [group("a", ("2", 1.0), level=2), group("b", ("3", 0.0), level=10), group("c", ("2", 1.0), level=10)]
    rows = by_column(groups, "level")
    assert [(r["value"], r["problems"], r["mean"]) for r in rows] == [("2", 1, 1.0), ("10", 2, 0.5)]  # as numbers
    assert rows[0]["interval"] == list(wilson(1.0, 1))
    assert found(groups, by="level")["rows"] == rows
    with pytest.raises(UserError, match="did you mean 'level'"):
        check_column([g.prompt for g in groups], "levle")


def test_every_answer_is_a_row_and_a_failed_one_has_no_reward() -> None:
    rows = predictions([group("a", ("2", 1.0), ("cut", math.nan), kind="x")], "kind")
    assert rows[0] == {
        "id": "a", "sample": 0, "prompt": [{"role": "user", "content": "?"}], "gold": "2", "answer": "2", "reward": 1.0,
        "components": {"task": 1.0}, "tokens": 3, "stop": "stop", "kind": "x",
    }  # fmt: skip
    assert rows[1]["reward"] is None and rows[1]["components"] == {"task": None} and rows[1]["stop"] == "length"


def test_pairs() -> None:
    """Margins 2, -1, 0 and one that is not finite: right 1, 0, 1/2 of three; confidence of 2 is sigmoid(2) = 0.880797."""
    worth = {"a": 3.0, "b": 1.0, "c": 2.0, "d": math.nan}
    pairs = [
        Prompt.text(f"p{i}", "?", chosen=c, rejected=r, kind=k)
        for i, (c, r, k) in enumerate((("a", "b", "x"), ("b", "c", "y"), ("b", "b", "y"), ("d", "a", "x")))
    ]
    margins = margins_of(lambda prompts, texts: [worth[t] for t in texts], pairs)
    told = pair_figures(pairs, margins, scored=True, by="kind")
    assert (told["accuracy"], told["margin"], told["failed"]) == (0.5, pytest.approx(1 / 3), 1)
    # bins: 0.5 to 0.55 holds the tie (right 1/2 of the time, sure 1/2); -1: sure 0.731059, wrong; 2: sure 0.880797, right
    assert told["calibration_error"] == pytest.approx((0.0 + 0.731059 + (1 - 0.880797)) / 3, abs=1e-5)
    assert [(r["value"], r["pairs"], r["accuracy"]) for r in told["rows"]] == [("x", 1, 1.0), ("y", 2, 0.25)]
    assert "calibration" not in pair_figures(pairs, margins, scored=False)


def test_a_column_of_the_data_never_hides_what_was_answered() -> None:
    """--by a column that has the name of a field of the saved rows."""
    some = [group("a", ("said", 1.0), ("2", 0.0), stop="mine", kind="x")]
    for by in ("answer", "stop", "reward"):
        told = predictions(some, by)
        assert [(r["stop"], r["answer"], r["reward"]) for r in told] == [
            ("stop", "said", 1.0),
            ("stop", "2", 0.0),
        ]
    assert predictions(some, "kind")[0]["kind"] == "x"
    pair = Prompt("p", (), None, {"chosen": "c", "rejected": "r", "id": "mine"})
    assert answers_of(pair, 1.0, "id")["id"] == "p" and answers_of(pair, 1.0, "chosen")["chosen"] == "c"


def test_votes_of_an_evaluation_are_the_graders() -> None:
    some = [group("a", ("It is 2.", 1.0), ("2", 1.0), ("3", 0.0))]
    score = score_of([g.rollouts for g in some], "accuracy")
    assert figures(some, score, grader="numeric")["maj_at_k"]["3"]["mean"] == 1.0
    assert figures(some, score)["maj_at_k"]["3"]["mean"] == pytest.approx(2 / 3)  # three texts, one vote each
