"""Critiques in words to rewards of tokens."""

from __future__ import annotations

import math

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.errors import UserError
from posttrain.core.types import Group
from posttrain.runs.in_memory import row
from posttrain.systems.policy_gradient.text2grad import (
    Critiqued,
    find_quotes,
    mark_tokens,
    of_task,
    read_critique,
    text2grad,
)


def test_a_critique_is_read_from_the_json_in_it() -> None:
    told = 'The start is fine, the end is not. {"good": ["ab"], "poor": ["c", "d"]} I hope this helps.'
    assert read_critique(told) == [("ab", 1.0), ("c", -1.0), ("d", -1.0)]
    ordered = '{"spans": [{"quote": "c", "verdict": "poor"}, {"quote": "ab", "verdict": "good"}]}'
    assert read_critique(ordered) == [("c", -1.0), ("ab", 1.0)]
    for bad in ("no JSON", "{broken", '{"spans": [{"quote": "c", "verdict": "fine"}]}', "[1]"):
        with pytest.raises(UserError, match="cannot read the critique"):
            read_critique(bad)
    assert read_critique("{}") == []


def test_quotes_are_found_in_order_with_repeats() -> None:
    text = "abcabcabd"
    # the second "abc" is the second one; "abd" stands last; then "ab" is looked for from the start again
    got = find_quotes(text, [("abc", 1.0), ("abc", -1.0), ("abd", 1.0), ("ab", -1.0)])
    assert got == [((0, 3), 1.0), ((3, 6), -1.0), ((6, 9), 1.0), ((0, 2), -1.0)]
    assert find_quotes(text, [("xyz", 1.0), ("", -1.0), ("ca", 1.0)]) == [((2, 4), 1.0)]  # misquotes say nothing


def test_tokens_that_a_span_overlaps_are_marked() -> None:
    # tokens "ab", "c", "", "def": ends 2, 3, 3, 6. Good (1, 3): touches ab and c. Poor (2, 4): touches c and def.
    mask_T = torch.tensor([True, True, True, True])
    got = mark_tokens([((1, 3), 1.0), ((2, 4), -1.0)], [2, 3, 3, 6], mask_T)
    assert got.tolist() == [1.0, 0.0, 0.0, -1.0]
    # praised twice is praised; a token that the policy did not choose earns nothing
    got = mark_tokens([((0, 2), 1.0), ((0, 3), 1.0)], [2, 3, 3, 6], torch.tensor([True, False, True, True]))
    assert got.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_the_scorer_fills_token_rewards_and_masks_failures() -> None:
    p = TabularPolicy(1, 4, 4)
    answers = [p.written(row(0), t) for t in ("abcd", "dddd")]

    def critic(prompt, text: str) -> str:
        if text == "dddd":
            raise RuntimeError("no idea")
        return 'Good "bc", poor "d": {"good": ["bc"], "poor": ["d"]}'

    report = Critiqued(critic, p.decode, scale=0.5).score([Group(row(0), answers)])
    assert answers[0].reward == 0.0 and answers[0].stream("reward").tolist() == [0.0, 0.5, 0.5, -0.5]
    assert math.isnan(answers[1].reward) and report.masked == 1 and report.rewards[0].error == "RuntimeError: no idea"
    assert report.rewards[0].mean == pytest.approx(0.5)


def test_a_grade_as_a_critic() -> None:
    class Env:
        def grade(self, prompt, text: str) -> float:
            return float(text == "ok")

    critic = of_task(Env())
    assert read_critique(critic(row(0), "ok")) == [("ok", 1.0)] and read_critique(critic(row(0), "no")) == [
        ("no", -1.0)
    ]


def test_the_plan_refuses_a_critic_that_is_no_file() -> None:
    with pytest.raises(UserError, match=r"mine.py:function"):
        text2grad(critic="gpt")
    assert text2grad().parts[0].method.advantage.name == "gae"
