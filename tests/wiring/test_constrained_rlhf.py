"""What sets constrained RLHF apart, on the registered method."""

from __future__ import annotations

from typing import Any

import pytest

import posttrain as pt
from tests.wiring.spies import traced


def many(prompt: Any, text: str) -> float:
    return float(len(text))


def test_points_are_asked_for() -> None:
    with pytest.raises(pt.UserError, match=r"no point is given; write --shaping"):
        traced("constrained-rlhf", reward=many)
