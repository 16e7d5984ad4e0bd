"""Critiques in words to rewards of tokens."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.errors import UserError
from posttrain.core.types import Group
from posttrain.runs.in_memory import row
from posttrain.systems.policy_gradient.text2grad import (
    Critiqued,
    ModelCritic,
    find_quotes,
    mark_tokens,
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
    with pytest.raises(UserError, match="it is a text with JSON like"):
        read_critique({"good": ["ab"]})  # what a function of a user's may give


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


def test_the_plan_refuses_without_critiques_and_reads_them_before_anything_is_loaded(tmp_path) -> None:
    assert "nobody writes critiques; give --plan.critiques" in text2grad().missing
    with pytest.raises(UserError, match=r"mine.py:function"):
        text2grad(critic="gpt")
    file = tmp_path / "c.jsonl"
    file.write_text(
        '{"question": "1+1=?", "answer": "2", "critique": "fine {\\"good\\": [\\"2\\"]}"}\n{"question": "?"}\n'
    )
    with pytest.raises(UserError, match="line 2: no answer, critique"):
        text2grad(critiques=str(file))
    file.write_text('{"question": "1+1=?", "answer": "2", "critique": "fine"}\n')
    with pytest.raises(UserError, match="cannot read the critique 'fine'"):
        text2grad(critiques=str(file))
    assert [p.name for p in text2grad(critiques="http://127.0.0.1:1/v1").parts] == ["critiques", "critic", "ppo"]
    (only,) = text2grad(critic="mine.py:f").parts
    assert only.method.advantage.name == "gae"


def test_a_model_writes_critiques_side_by_side() -> None:
    class Writer:
        def sample(self, prompts, n, how):
            self.asked, self.how = prompts, how
            return [[SimpleNamespace(text='{"good": ["a"]}' if "Answer:\nab" in p.last else "hm")] for p in prompts]

    policy, writer = TabularPolicy(1, 4, 5), Writer()
    answers = [policy.written(row(0), t) for t in ("abcd", "dddd")]
    Critiqued(ModelCritic(writer, 99), policy.decode).score([Group(row(0), answers)])
    assert answers[0].stream("reward").tolist() == [1.0, 0.0, 0.0, 0.0] and math.isnan(answers[1].reward)
    assert len({p.id for p in writer.asked}) == 2 and (writer.how.max_tokens, writer.how.temperature) == (99, 0.0)
