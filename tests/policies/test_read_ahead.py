"""Written answers that were read ahead are what they are one by one."""

from __future__ import annotations

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.policies.load import load_model


def test_the_same_ids_masks_and_texts_as_one_by_one(monkeypatch):
    policy, plain = load_model("pocket", "cpu"), load_model("pocket", "cpu")
    texts = [(f"It is {2 * i}.", f"Maybe \u00fc{i}") for i in range(5)]
    asked = [Prompt.text(str(i), f"What is {i}+{i}?", chosen=a, rejected=b) for i, (a, b) in enumerate(texts)]
    policy.read_ahead(asked)
    calls, tokenizer = [], policy.tokenizer
    monkeypatch.setattr(type(tokenizer), "__call__", lambda self, *a, **k: calls.append(a))
    made = [[policy.written(p, text) for text in some] for p, some in zip(asked, texts, strict=True)]
    monkeypatch.undo()
    assert not calls  # all of it was read ahead
    for p, some, many in zip(asked, texts, made, strict=True):
        assert many[0].row.observation is many[1].row.observation
        for text, got in zip(some, many, strict=True):
            want = plain.written(p, text)
            assert torch.equal(got.row.observation.tokens, want.row.observation.tokens)
            for name in ("actions", "mask_T", "logp_T", "version_T"):
                assert torch.equal(getattr(got.row, name), getattr(want.row, name))
            assert (got.text, got.origin, got.end, got.row.observation.lead) == (
                want.text, want.origin, want.end, want.row.observation.lead,
            )  # fmt: skip


def test_other_prompts_and_texts_are_read_when_they_are_asked_for():
    policy = load_model("pocket", "cpu")
    policy.read_ahead([Prompt.text("1", "one", chosen="a", rejected="b"), Prompt.text("2", "two")])
    assert policy.decode(policy.written(Prompt.text("1", "other"), "c").actions) == "c"
    assert len(policy.ahead.seen) == 1
    policy.read_ahead([])
    assert not policy.ahead.seen and not policy.ahead.ids


def test_half_a_character_is_told_where_it_is_asked_for():
    policy, p = load_model("pocket", "cpu"), Prompt.text("7", "hi", chosen="\ud83d", rejected="b")
    policy.read_ahead([p])
    with pytest.raises(UserError, match="an answer to prompt '7' holds half of a character"):
        policy.written(p, "\ud83d")
