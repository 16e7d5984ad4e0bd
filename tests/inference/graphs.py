"""Stand-ins for captured graphs of prefills, which only a GPU has: a replay launches the same work again on the inputs that were captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posttrain.inference.engine import Engine
from posttrain.inference.prefill import Inputs, Prefill, Shape


class Graph:
    def __init__(self, prefill: Prefill, shape: Shape, inputs: Inputs) -> None:
        self.prefill, self.shape, self.inputs, self.replayed = prefill, shape, inputs, 0

    def replay(self) -> None:
        self.replayed += 1
        self.prefill._launch(self.shape[2], *self.inputs)


def use_graphs(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """This engine prefills as on a GPU, from the second time that a shape comes; returns its graphs by shape."""

    def capture(self: Prefill, shape: Shape, given: Inputs) -> None:
        inputs = tuple(torch.zeros_like(x) for x in given)
        self.graphs[shape] = Graph(self, shape, inputs), inputs  # type: ignore[assignment]

    monkeypatch.setattr(Prefill, "_capture", capture)
    assert engine.slots is not None
    engine.slots.prefill.pool = "a GPU's"
    return engine.slots.prefill.graphs
