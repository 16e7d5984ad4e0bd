"""Partial credit: right, a number, or nothing to read."""

from __future__ import annotations

import pytest

from posttrain.core.types import Prompt
from posttrain.systems.policy_gradient.reft import partial_credit

PROMPT = Prompt.text("p", "How many?", "12")


@pytest.mark.derived("reward/partial-credit")
@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("<think>3*4=12</think>12", 1.0),
        ("#### 12.0", 1.0),
        ("<think>3*4=12</think>13", 0.1),  # a number, but the wrong one
        ("<think>12</think>-12", 0.1),
        ("<think>12</think>twelve", 0.0),  # the number is not in the answer
        ("<think>12", 0.0),  # thinking never closed: no answer
        (r"12 or \boxed{none}", 0.0),  # what is marked is the answer
        ("", 0.0),
    ],
)
def test_values_by_hand(text: str, worth: float) -> None:
    assert partial_credit(PROMPT, text) == worth


def test_the_credit_can_be_changed() -> None:
    """Without credit it is 1 or 0; a right answer is worth 1 whatever the credit."""
    other, none = partial_credit.but(credit=0.3), partial_credit.but(credit=0.0)
    assert [other(PROMPT, x) for x in ("12", "13", "x")] == [1.0, 0.3, 0.0]
    assert [none(PROMPT, x) for x in ("12", "13", "x")] == [1.0, 0.0, 0.0]


def test_a_gold_that_is_no_number_is_an_error_not_a_wrong_answer() -> None:
    with pytest.raises(ValueError, match="holds no number"):
        partial_credit(Prompt.text("p", "Capital?", "Paris"), "5")
