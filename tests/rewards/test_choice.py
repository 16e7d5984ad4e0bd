"""Multiple choice: the letter that a text settles on, and the gold in its forms."""

from __future__ import annotations

import pytest

from posttrain.core.types import Prompt
from posttrain.rewards.rules.choice import choice, pick


def asked(answer: object, **info: object) -> Prompt:
    return Prompt.text("p", "question", answer, **info)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("The answer is **C**.", "C"),
        ("Answer: D", "D"),
        ("the answer is A or B", None),
        ("A B C D E", None),
        ("A, so not that; B", None),
        ("I would say B, not C", None),  # nothing is marked and two letters stand in the last line
        ("thinking about A and B\nB", "B"),
        ("A dog is a mammal, hence C", "C"),  # the article is not a choice
        ("A is right, B is wrong", None),  # no article
        ("Both A and B", None),
        ("I cannot say, A or B", None),
        ("Option B is wrong. I choose A.", None),  # an option that is only mentioned is not the answer
        ("The answer is B. Option A is odd.", "B"),
        ("The answer is option (B)", "B"),
        ("Option B\nIt is the only fruit.", "B"),
        ("Option B\nOption C is none.\nFine.", None),
        ("the answer is not B", None),
        ("It isn't (B)", None),
        ("b", "B"),
        ("(c)", "C"),
        ("The answer is b.", "B"),
        ("the answer is (a)", "A"),
        ("the answer is a good one", None),
        ("the answer is a", None),  # cut off
        ("the answer is e.g. this", None),
        ("\\boxed{b}", "B"),
        ("B\n\nBecause A is odd, and C even.", "B"),
        ("A\nB\nC", None),  # a list of all
        ("", None),
        ("<think>B", None),
    ],
)
def test_pick(text, want):
    assert pick(text) == want


@pytest.mark.derived("reward/choice")
def test_choice_gold_may_be_letter_index_or_text():
    options = ["one", "two", "three"]
    for gold in ("C", "(c)", 2, "three"):
        assert choice(asked(gold, choices=options), "The answer is C") == 1.0
        assert choice(asked(gold, choices=options), "The answer is B") == 0.0
    with pytest.raises(ValueError, match="neither"):
        choice(asked("seven", choices=options), "A")
