"""maj@k against cases counted by hand."""

from __future__ import annotations

import pytest

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.evals.majority import maj_at_k, majority, vote_of


def test_what_an_answer_votes_for() -> None:
    assert vote_of("<think>1+1</think> 12.0") == vote_of("so \\boxed{12}") == vote_of("#### 12")
    assert vote_of("Paris.") == vote_of("<answer>PARIS</answer>") != vote_of("Rome")
    assert vote_of("<think>never ends") is None


def test_the_most_frequent_wins_and_ties_are_by_lot() -> None:
    assert majority(["a", "b", "a"], [True, False, True]) == 1.0
    assert majority(["a", "b", "b"], [True, False, False]) == 0.0
    assert majority(["a", "b", "c"], [True, False, False]) == pytest.approx(1 / 3)
    assert majority(["a", None, None], [True, False, False]) == 1.0  # who says nothing does not vote
    assert majority([None, None], [False, False]) == 0.0


def test_it_is_the_mean_over_all_subsets() -> None:
    """a a b b with a right, k = 3: of the 4 subsets two have two a (1) and two have two b (0)."""
    votes, right = ["a", "a", "b", "b"], [True, True, False, False]
    assert maj_at_k(votes, right, 3) == 0.5
    assert maj_at_k(["a", "a", "a", "b"], [True] * 3 + [False], 3) == 1.0
    assert maj_at_k(["a", "b", "b", "b"], [True] + [False] * 3, 3) == 0.0
    with pytest.raises(UserError, match="maj@5 needs at least 5"):
        maj_at_k(votes, right, 5)


def test_many_subsets_are_drawn_by_identity() -> None:
    votes, right = ["a"] * 10 + ["b"] * 10, [True] * 10 + [False] * 10
    found = maj_at_k(votes, right, 9, "p1")
    assert found == maj_at_k(votes, right, 9, "p1") and 0.3 < found < 0.7 and found != maj_at_k(votes, right, 9, "p2")


def test_votes_are_read_as_the_grader_reads() -> None:
    said = ["It is 7.", "3+4 = 7", "7.0"]
    assert len({vote_of(t, grader="numeric") for t in said}) == 1 and len({vote_of(t) for t in said}) == 3
    assert vote_of("no idea", grader="numeric") is None
    prompt = Prompt.text("x", "Which?", "H", choices=[str(i) for i in range(8)])
    assert {vote_of(t, prompt, "choice") for t in ("The answer is (H).", "h", "H) 7")} == {"H"}
    assert vote_of("A or B", prompt, "choice") is None
