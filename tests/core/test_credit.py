"""Spans to tokens by hand, and the fine-grained scorer: what falls where, and what a failure masks."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.assemble import assemble
from posttrain.core.batch import Batch
from posttrain.core.credit import component, members, on_last, spans_to_tokens, split_steps, token_ends
from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.scorers.fine_grained import FineGrained, SegmentModel, models_of, of_change, of_segment

PIECES = ["Hi", ", you", ".", " A", " b."]  # tokens of "Hi, you. A b."
TEXT = "".join(PIECES)


def decode(ids: torch.Tensor) -> str:
    return "".join(PIECES[i] for i in ids.tolist())


def rollout(mask: list[bool] | None = None) -> Rollout:
    mask_T = torch.tensor(mask or [True] * 5)
    return Rollout.single(Prompt.text("p", "?"), torch.tensor([0]), torch.arange(5), torch.zeros(5), mask_T, TEXT)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("answer", ["Hi, you. A b."]),
        ("sentence", ["Hi, you. ", "A b."]),
        ("phrase", ["Hi, ", "you. ", "A b."]),
        ("word", ["Hi, ", "you. ", "A ", "b."]),
        ("line", ["Hi, you. A b."]),
    ],
)
def test_split(level: str, expected: list[str]) -> None:
    assert [TEXT[a:b] for a, b in split_steps(TEXT, level)] == expected


def test_split_keeps_every_character_and_counts_no_empty_step() -> None:
    text = "\n\na\n\n  \nb 3.5 c.\n"
    spans = split_steps(text, "line")
    assert [text[a:b].strip() for a, b in spans] == ["a", "b 3.5 c."]
    assert split_steps("", "line") == [] and split_steps(" \n", "sentence") == []
    assert len(split_steps("It is 3.5 m. Yes.", "sentence")) == 2  # a decimal point ends nothing
    with pytest.raises(UserError, match="did you mean 'sentence'"):
        split_steps("a", "sentences")


def test_a_worth_falls_on_the_token_that_ends_its_span() -> None:
    # tokens end at 2, 7, 8, 10, 13. "Hi, you. " ends at 9: inside token 3, which ends it; "A b." at 13: token 4.
    ends = token_ends(decode, torch.arange(5))
    assert ends == [2, 7, 8, 10, 13]
    got = spans_to_tokens(split_steps(TEXT), [1.0, -2.0], ends, torch.ones(5, dtype=torch.bool))
    assert got.tolist() == [0.0, 0.0, 0.0, 1.0, -2.0]
    # spans that end together are summed; one that ends with token 0 exactly stays there
    got = spans_to_tokens([(0, 2), (0, 13), (9, 13)], [0.5, 1.0, 2.0], ends, torch.ones(5, dtype=torch.bool))
    assert got.tolist() == [0.5, 0.0, 0.0, 0.0, 3.0]


def test_tokens_of_others_pass_their_worth_to_the_policy() -> None:
    ends = token_ends(decode, torch.arange(5))
    mask = torch.tensor([False, True, True, False, False])
    got = spans_to_tokens([(0, 2), (0, 9), (9, 13)], [1.0, 2.0, 4.0], ends, mask)
    assert got.tolist() == [0.0, 1.0, 6.0, 0.0, 0.0]  # before any of its own: the first after; else the last before
    assert spans_to_tokens([(0, 2)], [1.0], ends, torch.zeros(5, dtype=torch.bool)).sum() == 0
    with pytest.raises(UserError, match="1 spans have 2 worths"):
        spans_to_tokens([(0, 2)], [1.0, 2.0], ends, mask)


def test_outcome_on_the_last_own_token() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    had = torch.tensor([[9.0, 9.0, 9.0], [9.0, 9.0, 9.0], [math.nan] * 3])
    got = on_last(torch.tensor([1.0, 2.0, 3.0]), Batch(logp_BT=torch.zeros(3, 3), mask_BT=mask, reward_BT=had))
    assert got[:2].tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 2.0]] and got[2].isnan().all()


def test_components_reach_the_batch() -> None:
    one, two = rollout(), rollout()
    one.reward, one.rewards = 3.0, {"a": 1.0, "b": 2.0}
    two.reward, two.rewards = 4.0, {"a": 4.0}
    _, batch = assemble([Group(one.prompt, [one, two])])
    assert component(batch, "a").tolist() == [1.0, 4.0] and component(batch, "reward").tolist() == [3.0, 4.0]
    assert math.isnan(component(batch, "b")[1]) and members(batch).shape == (2, 2)
    assert component(batch.rows(torch.tensor([1])), "a").tolist() == [4.0]
    with pytest.raises(UserError, match="component"):
        component(batch, "zzz")


def test_fine_grained_sums_models_where_their_segments_end() -> None:
    # sentences worth 1, -1 with weight .5; phrases worth their length / 10: .4, .5, .4; the answer is worth 3
    models = [
        SegmentModel("s", "sentence", lambda p, t, span: 1.0 if span[0] == 0 else -1.0, 0.5),
        SegmentModel("p", "phrase", of_segment(lambda p, t: len(t) / 10)),
        SegmentModel("whole", "answer", of_segment(lambda p, t: 3.0)),
    ]
    r = rollout()
    report = FineGrained(models, decode).score([Group(r.prompt, [r])])
    # "Hi, " ends at 4, in token 1: .4; "you. " and the first sentence at 9, in token 3: .5 + .5; "A b." in token 4
    torch.testing.assert_close(r.stream("reward"), torch.tensor([0.0, 0.4, 0.0, 1.0, -0.1]))
    assert r.reward == 3.0 and r.rewards == pytest.approx({"s": 0.0, "p": 1.3, "whole": 3.0})
    torch.testing.assert_close(
        assemble([Group(r.prompt, [r])])[1]["reward_BT"][0], torch.tensor([0.0, 0.4, 0.0, 1.0, 2.9])
    )
    assert report.masked == 0 and [x.mean for x in report.rewards] == pytest.approx([0.0, 1.3, 3.0])


def test_the_change_of_a_score() -> None:
    # a score that counts letters b: nothing before "A b.", 1 after; the sum of changes is the score of the whole
    judge = of_change(lambda p, t: t.count("b"))
    worths = [judge(rollout().prompt, TEXT, span) for span in split_steps(TEXT)]
    assert worths == [0.0, 1.0] and sum(worths) == TEXT.count("b")


def test_a_failure_masks_its_answer_and_is_told() -> None:
    def bad(prompt, text, span):
        raise ValueError("no")

    r = rollout()
    models = [SegmentModel("s", "sentence", bad), SegmentModel("w", "answer", of_segment(lambda p, t: 1.0))]
    report = FineGrained(models, decode).score([Group(r.prompt, [r])])
    assert r.failed and report.masked == 1 and report.rewards[0].error == "ValueError: no"


def test_spec_and_plan() -> None:
    found = models_of("0.3*sentence:repetition + answer:exact_match", None)
    assert [(m.name, m.level, m.weight) for m in found] == [
        ("sentence-repetition", "sentence", 0.3), ("answer-exact_match", "answer", 1.0),
    ]  # fmt: skip
    for wrong in ("repetition", "x*line:repetition", "paragraph:repetition", "line:nothing"):
        with pytest.raises(UserError):
            models_of(wrong, None)
    with pytest.raises(UserError, match="SegmentModel"):
        FineGrained([], decode)
    assert find("fine-grained-rlhf(steps=2)", "plan")().parts[0].steps == 2
