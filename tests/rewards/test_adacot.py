"""AdaCoT's penalties by hand: which mode was needed, which was chosen, and tags that are not a pair."""

from __future__ import annotations

import pytest

from posttrain.core.types import Prompt
from posttrain.systems.efficient_reasoning.adacot import broken
from posttrain.systems.efficient_reasoning.adacot import mode_penalty as adacot

HARD, EASY = Prompt.text("h", "17*23?", "391", cot=True), Prompt.text("e", "2+2?", "4", cot=False)


@pytest.mark.derived("reward/adacot")
@pytest.mark.parametrize(
    ("prompt", "text", "worth"),
    [
        (HARD, "<think>17*20+51</think>391", 0.0),
        (HARD, "<think></think>391", -0.3),  # missed
        (HARD, "391", -0.3),
        (EASY, "<think></think>4", 0.0),
        (EASY, "<think>2 and 2</think>4", -0.1),  # over
        (EASY, "<think>2 and 2", -1.1),  # over, and never closed
        (HARD, "<think></think>", -1.3),  # missed, and no answer
    ],
)
def test_values_by_hand(prompt: Prompt, text: str, worth: float) -> None:
    assert adacot(prompt, text) == pytest.approx(worth)


def test_each_price_is_its_own() -> None:
    other = adacot.but(miss=2.0, over=0.5, form=0.0)
    assert [other(p, t) for p in (HARD, EASY) for t in ("1", "<think>a</think>1", "<think>a")] == [
        -2,
        0,
        0,
        0,
        -0.5,
        -0.5,
    ]


@pytest.mark.parametrize(
    "text", ["", "</think>4", "4<think>a</think>4", "<think>a</think>b</think>c", "<think><think>a</think>4"]
)
def test_broken_tags(text: str) -> None:
    assert broken(text)


def test_a_question_without_a_label_is_an_error_not_a_zero() -> None:
    with pytest.raises(ValueError, match="does not say whether it needs a thought"):
        adacot(Prompt.text("p", "2+2?", "4"), "4")
