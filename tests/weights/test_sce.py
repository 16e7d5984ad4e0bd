"""The SCE merge by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posttrain.weights.soup import sce


def made(*values: float) -> Any:
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.tensor(values))
    return module


def test_select_calculate_erase() -> None:
    # base (1, 1), d = (2, 1) and (1, -3): w = mean d^2 = 2.5 and 5, shares 1/3 and 2/3; signs of the sum (3, -2): + and -
    # first entry: (2/3 + 2/3) / 1 = 4/3; second: the 1 is erased, (2/3)(-3) / (2/3) = -3
    base, first, second = made(1.0, 1.0), made(3.0, 2.0), made(2.0, -2.0)
    sce(base, [first, second])
    assert first.w.tolist() == pytest.approx([1 + 4 / 3, -2.0])
    assert second.w.tolist() == [2.0, -2.0] and base.w.tolist() == [1.0, 1.0]
    # half of the entries: the second varies more (variance 4, not 1/4), so the first stays the base's
    first = made(3.0, 2.0)
    sce(base, [first, second], keep=0.5)
    assert first.w.tolist() == pytest.approx([1.0, -2.0])
    # experts that did not move: the base
    first = made(1.0, 1.0)
    sce(base, [first, made(1.0, 1.0)])
    assert first.w.tolist() == [1.0, 1.0]
