"""Written answers of many prompts at once are what they are one by one."""

from __future__ import annotations

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.policies.load import load_model
from posttrain.policies.written_rows import written_all


def test_the_same_ids_masks_and_texts_as_one_by_one():
    policy = load_model("pocket", "cpu")
    asked = [(Prompt.text(str(i), f"What is {i}+{i}?"), (f"It is {2 * i}.", f"Maybe ü{i}", "")) for i in range(5)]
    for (p, texts), many in zip(asked, written_all(policy, asked), strict=True):
        assert many[0].row.observation is many[1].row.observation  # read once
        for text, got in zip(texts, many, strict=True):
            want = policy.written(p, text)
            assert torch.equal(got.row.observation.tokens, want.row.observation.tokens)
            for name in ("actions", "mask_T", "logp_T", "version_T"):
                assert torch.equal(getattr(got.row, name), getattr(want.row, name))
            assert (got.text, got.origin, got.end, got.row.observation.lead) == (
                want.text,
                want.origin,
                want.end,
                want.row.observation.lead,
            )


def test_no_prompts_and_half_characters():
    policy = load_model("pocket", "cpu")
    assert written_all(policy, []) == []
    with pytest.raises(UserError, match="an answer to prompt '7' holds half of a character"):
        written_all(policy, [(Prompt.text("7", "hi"), ("\ud83d",))])
