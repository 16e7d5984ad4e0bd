"""Two plain counts as rewards for small requests: each goes with what is liked, up to a point, and is worth less than nothing past it."""

from __future__ import annotations

from typing import Any

from posttrain.environments.school.instructions import warmth, words_of


def words(prompt: Any, text: str) -> float:
    """How much is said, in fives of words."""
    return len(words_of(text)) / 5


def warm(prompt: Any, text: str) -> float:
    """Warm words and exclamation marks, in pairs."""
    return warmth(text) / 2
