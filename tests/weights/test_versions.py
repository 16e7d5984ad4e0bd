"""A step of any optimiser is seen by whoever watches the version of the weights: the rollout engine copies them anew by it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from posttrain.core.registry import find, parts
from posttrain.inference.fused import Fused
from posttrain.weights import optimisers
from tests.models.tiny import decoder


@pytest.mark.parametrize("name", [p.name for p in parts("optimiser")])
def test_every_optimiser_changes_the_version_of_what_it_moves(name: str) -> None:
    p, still = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    made = find(name, "optimiser")([("hidden.weight", p), ("other.weight", still)])
    p.grad = torch.randn(4, 4)
    before = p._version
    made.step()
    assert p._version > before and still._version == 0


def test_the_engine_copies_weights_that_a_fused_step_has_moved() -> None:
    model = decoder()
    engine = Fused(model, 16)
    made = optimisers.told(torch.optim.AdamW(model.parameters(), lr=0.1, fused=True))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    was = engine.layers[0].qkv.clone()
    made.step()
    assert engine.refresh() and not torch.equal(engine.layers[0].qkv, was)
    assert torch.equal(engine.layers[0].qkv, Fused(model, 16).layers[0].qkv) and not engine.refresh()
