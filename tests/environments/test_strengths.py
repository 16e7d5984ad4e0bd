"""How sure a pair is and who says so: soft labels, votes, annotators, scores; repeated, contradictory and turned pairs."""

from __future__ import annotations

import math

import pytest

from posttrain.core.errors import UserError
from posttrain.environments.agreement import agreement, judgements
from posttrain.environments.preferences import Reading, preferences
from posttrain.environments.strengths import good, number
from posttrain.environments.task import pair_task
from tests.environments.test_data import jsonl

TEST = [{"prompt": "t", "chosen": "a", "rejected": "b"}]


def pairs(*rows, **how):
    """The training pairs of rows about one question, in the order of the file."""
    whole = [{"prompt": "q", "chosen": "a", "rejected": "b"} | row for row in rows]
    return preferences(whole, test=TEST, how=Reading(**how))


@pytest.mark.parametrize(
    ("row", "sure"),
    [
        ({"preferred": 0.8}, 0.8),
        ({"p_chosen": "0.75"}, 0.75),
        ({"soft_label": 1}, 1.0),
        ({"chosen_votes": 3, "rejected_votes": 1}, 0.75),  # 3 / (3 + 1)
        ({"votes": [1, 1, 0, 1, 1]}, 0.8),  # 4 of 5
        ({"labels": ["chosen", "rejected", "tie", "chosen"]}, 0.625),  # (1 + 0 + 1/2 + 1) / 4
        ({"preferred": None}, None),
        ({"probability": math.nan}, None),  # an empty cell of a data frame
        ({}, None),
    ],
)
def test_how_sure_a_pair_is(row, sure):
    (found,) = pairs(row).pairs()
    assert (found.chosen, found.rejected, found.preferred, found.turned) == ("a", "b", sure, False)


def test_the_answer_that_more_than_half_prefer_comes_first():
    found = pairs({"chosen_votes": 1, "rejected_votes": 3, "score_chosen": 2, "score_rejected": 5})
    (pair,) = found.pairs()
    assert (pair.chosen, pair.rejected, pair.preferred) == ("b", "a", 0.75)
    assert pair.prompt.info["votes"] == [0, 1, 1, 1] and pair.prompt.info["score_chosen"] == 5
    assert any(note.startswith("turned round: 1 pairs") for note in found.understood.notes)


def test_a_tie_is_left_out_and_counted_unless_it_is_wanted():
    assert pairs({"preferred": 0.5}, {}).left_out["ties, of which each answer is preferred as often"] == 1
    kept = pairs({"preferred": 0.5}, ties=True)
    assert [p.preferred for p in kept.pairs()] == [0.5]
    with pytest.raises(UserError, match="every pair is a tie"):
        preferences([{"prompt": "q", "chosen": "a", "rejected": "b", "preferred": 0.5}])


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"preferred": 1.5}, "probability from 0 to 1"),
        ({"preferred": "yes"}, r"is 'yes'; it is the probability .* write FILE\(preferred=''\)"),
        ({"votes": 3}, r"write FILE\(votes=''\)"),
        ({"votes": [1, "maybe"]}, "a vote of each annotator"),
        ({"chosen_votes": 0, "rejected_votes": 0}, "somebody votes"),
        ({"votes": [1, 0, 1], "annotators": ["ann"]}, "1 annotators for 3 votes"),
    ],
)
def test_a_strength_that_is_none_is_a_bad_row(row, told):
    with pytest.raises(UserError, match=told):
        pairs(row)


def test_a_column_that_is_something_else_can_be_named_away(tmp_path):
    rows = [{"prompt": f"q{i}", "chosen": "a", "rejected": "b", "votes": "many"} for i in range(12)]
    env = pair_task(f"{jsonl(tmp_path / 'p.jsonl', rows)}(votes='')")
    assert env.prompt(0).info["votes"] == "many"


def test_the_preferred_answer_may_stand_in_a_column_of_that_name():
    (pair,) = preferences([{"prompt": "q", "preferred": "a", "rejected": "b"}], test=TEST).pairs()
    assert (pair.chosen, pair.preferred) == ("a", None)


def test_prompts_carry_what_is_known(tmp_path):
    row = {
        "prompt": "q",
        "chosen": "a",
        "rejected": "b",
        "p_chosen": 0.9,
        "worker": 7,
        "score_chosen": "4",
        "note": "x",
    }
    env = pair_task(str(jsonl(tmp_path / "p.jsonl", [row | {"prompt": f"q{i}"} for i in range(12)])))
    info = env.prompt(0).info
    assert info["preferred"] == 0.9 and info["annotator"] == "7" and info["score_chosen"] == 4.0 and info["note"] == "x"
    assert "p_chosen" not in info and "worker" not in info and "score_rejected" not in info


def test_repeated_and_contradictory_pairs_are_told_and_kept():
    found = pairs({}, {}, {"chosen": "b", "rejected": "a"}, {"chosen": "c"})
    told = "\n".join(found.understood.notes)
    assert found.size() == 4
    assert (
        "repeated: 1 pairs stand there twice" in told
        and "contradictory: 1 pairs of answers are compared in both ways, 1 of" in told
    )
    alone = pairs({}, {}, {"chosen": "c"}, unique=True)
    assert alone.size() == 2 and alone.left_out["rows that repeat an earlier one"] == 1


def test_annotators_who_differ_contradict_nobody_but_each_other():
    found = pairs({"annotator": "ann"}, {"annotator": "bob", "chosen": "b", "rejected": "a"}, {"annotator": "cid"})
    assert found.size() == 3 and [p.prompt.info["annotator"] for p in found.pairs()] == ["ann", "bob", "cid"]
    assert any("in both ways, 0 of them by the same" in note for note in found.understood.notes)
    assert not any(note.startswith("repeated") for note in found.understood.notes)


def test_merged_rows_are_votes():
    turned = {"chosen": "b", "rejected": "a"}
    found = pairs({"user": "x"} | turned, {"user": "y"}, {"user": "z"}, {"chosen": "c"}, merge=True)
    first, second = found.pairs()  # x says b, y and z say a: a with 2/3
    assert (first.chosen, first.rejected) == ("a", "b") and first.preferred == pytest.approx(2 / 3)
    assert first.prompt.info["votes"] == [0.0, 1.0, 1.0] and first.prompt.info["annotators"] == ["x", "y", "z"]
    assert second.chosen == "c" and second.preferred is None
    assert (
        pairs({}, turned, {"chosen": "c"}, merge=True).left_out["ties, of which each answer is preferred as often"] == 1
    )


def test_a_score_of_merged_rows_stays_with_its_answer():
    """a scores 5 and 3, b 1 and 4 and 4 where it is chosen; b wins with 2 of 3 votes. Means: b 3, a 4."""
    other = {"chosen": "b", "rejected": "a", "score_chosen": 4}
    found = pairs({"score_chosen": 5, "score_rejected": 1}, other | {"score_rejected": 3}, other, merge=True)
    (pair,) = found.pairs()
    assert (pair.chosen, pair.rejected) == ("b", "a") and pair.preferred == pytest.approx(2 / 3)
    assert pair.prompt.info["score_chosen"] == 3 and pair.prompt.info["score_rejected"] == 4
    (pair,) = pairs({"score_chosen": 5}, {}, merge=True).pairs()
    assert pair.prompt.info["score_chosen"] == 5 and "score_rejected" not in pair.prompt.info


def test_empty_answers_and_scores_that_say_the_opposite_are_told():
    found = pairs({"rejected": ""}, {"score_chosen": 1, "score_rejected": 2})
    told = "\n".join(found.understood.notes)
    assert "empty: 0 preferred answers and 1 others" in told
    assert "scores: in 1 pairs the answer that is not preferred has the higher score" in told


@pytest.mark.parametrize("how", [{"ties": 1}, {"merge": "yes"}, {"pairs": "some"}])
def test_options_that_are_none(how):
    with pytest.raises(UserError):
        Reading(**how)


@pytest.mark.parametrize(
    ("value", "want"),
    [(True, True), (0, False), (1.0, True), (-1, False), ("Good", True), ("undesirable", False), ("thumbs up", True),
     ("False", False), (2, None), ("fine", None), (None, None), ([], None), (math.nan, None)],
)  # fmt: skip
def test_good_and_bad_in_every_wording(value, want):
    assert good(value) is want


def test_numbers():
    assert [number(x, "x") for x in (3, "4.5", None, "", "N/A", math.nan)] == [3.0, 4.5, None, None, None, None]
    for bad in ("high", math.inf, [1], {}):
        with pytest.raises(ValueError, match="a finite number"):
            number(bad, "x")


# ---- agreement


def test_krippendorffs_alpha_by_hand():
    """Three things: votes (1, 1), (1, 0), (0, 0, 0).  n = 7 votes, 3 ones and 4 zeros.

    Observed: thing 2 has 2 * 1 * 1 / (2 - 1) = 2, over 7: 2/7.  Expected: 2 * 3 * 4 / (7 * 6) = 24/42 = 4/7.  alpha = 1 - 1/2.
    Majorities 1, 1/2, 1: mean 5/6.  Ordered pairs of votes that agree: 2 + 0 + 6 of 2 + 2 + 6: 8/10.
    """
    found = agreement([[1, 1], [1, 0], [0, 0, 0], [1]])  # the last was judged once: it does not count
    assert (found.judged, found.votes) == (3, 7)
    assert (
        found.alpha == pytest.approx(0.5)
        and found.majority == pytest.approx(5 / 6)
        and found.agreed == pytest.approx(0.8)
    )


def test_agreement_that_is_perfect_none_or_unknown():
    assert agreement([[1, 1], [0, 0]]).alpha == 1.0
    assert agreement([[1], [0]]) is None
    same = agreement([[1, 1], [1, 1]])
    assert same.agreed == 1.0 and math.isnan(same.alpha)  # chance would give the same
    assert agreement([[1, 0.5, 1]]).votes == 2  # ties do not count


def test_votes_are_for_the_answer_that_sorts_first():
    found = pairs(
        {"annotator": "x"},
        {"annotator": "y", "chosen": "b", "rejected": "a"},
        {"prompt": "r", "chosen": "z", "rejected": "c"},
    )
    assert judgements(found.pairs()) == [[1.0, 0.0], [0.0]]
