"""Rows that come without a split: one in ten is held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from posttrain.core.errors import UserError

T = TypeVar("T")
EVERY = 10


def one_in_ten(rows: Sequence[T], name: str) -> dict[str, list[T]]:
    """Every tenth row is for the test; of fewer than ten the last."""
    held = {i for i in range(len(rows)) if i % EVERY == EVERY - 1} or {len(rows) - 1}
    train = [row for i, row in enumerate(rows) if i not in held]
    if not train:
        raise UserError(f"{name} has {len(rows)} rows; it needs two at least, one to train on and one to test with")
    return {"train": train, "test": [row for i, row in enumerate(rows) if i in held]}
