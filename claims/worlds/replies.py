"""What a scoring service might say of a short text: how courteous it is. Imports no torch: rewards in a file are imported by a
process of their own."""

from __future__ import annotations

from posttrain.core.prompt import Prompt
from posttrain.environments.school.instructions import politeness

ENOUGH = 3


def courteous(text: str) -> float:
    """Words of courtesy, three of which are enough: 0, 1/3, 2/3 or 1."""
    return min(politeness(text), ENOUGH) / ENOUGH


def at_hand(prompt: Prompt, text: str) -> float:
    """The same without a service."""
    return courteous(text)
