"""Checks of an optimiser's parameters before it is built: torch would raise deep inside, or train backwards."""

from __future__ import annotations

import math
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.registry import Part

_BELOW_1 = ("momentum",)


def check_optimiser(part: Part) -> None:
    """Rates, decays and betas in the range where they are ones; other parameters are the part's own business."""
    for name, value in part.defaults().items():
        where = f"{part.name}: {name} is {value!r}"
        if name == "betas":
            if not (isinstance(value, (tuple, list)) and len(value) == 2 and all(_within(b, 1.0) for b in value)):
                raise UserError(f"{where}; it must be two numbers from 0 to below 1, like (0.9, 0.95)")
        elif name in ("lr", "weight_decay", "eps", *_BELOW_1) and not _within(
            value, 1.0 if name in _BELOW_1 else math.inf
        ):
            below = " and below 1" if name in _BELOW_1 else ""
            raise UserError(f"{where}; it must be a number, 0 or more{below}")


def _within(x: Any, below: float) -> bool:
    return isinstance(x, (int, float)) and 0 <= x < below
