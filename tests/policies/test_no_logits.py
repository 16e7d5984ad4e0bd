"""DPO and supervised fine-tuning make no tensor of all logits: none of as many numbers as actions times tokens of the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posttrain.core.config import Config
from posttrain.core.types import Prompt
from posttrain.methods.dpo import dpo
from posttrain.methods.sft import sft
from posttrain.models import likelihood
from posttrain.models.decoder import Decoder
from posttrain.models.shape import DecoderConfig
from posttrain.policies import language
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import load_model
from posttrain.runs.in_memory import Listed, loop_of
from posttrain.train import train

V, PAIRS, LETTERS = 1000, 8, 60


class Largest(TorchDispatchMode):
    """The most numbers of any tensor that an operation makes, backward included."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.most = max([self.most, *(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))])
        return out


@pytest.mark.parametrize("chunk", [20_000, 10**9])
@pytest.mark.parametrize("method", [dpo, sft])
def test_the_largest_tensor_of_a_step(method, chunk, monkeypatch):
    monkeypatch.setattr(likelihood, "CHUNK", chunk)
    monkeypatch.setattr(language, "CHUNK", chunk)
    torch.manual_seed(0)
    policy = LanguagePolicy(
        Decoder(DecoderConfig(V, 16, 32, 1, 2, 1, 8, tied=True)), load_model("pocket", "cpu").tokenizer
    )
    told = [{"chosen": "1" * LETTERS, "rejected": "2" * LETTERS, "demonstration": "3" * LETTERS} for _ in range(PAIRS)]
    env = Listed([Prompt.text(str(i), f"{i}?", **info) for i, info in enumerate(told)])
    loop = loop_of(policy, method, env, Config(steps=1, prompts=PAIRS, lr=1e-3))
    with Largest() as spy:
        train(loop)
    actions = (LETTERS + 1) * PAIRS * (2 if method is dpo else 1)
    if chunk == 20_000:
        assert spy.most < actions * V / 10
    else:  # the spy sees them where they are made
        assert spy.most >= actions * V
