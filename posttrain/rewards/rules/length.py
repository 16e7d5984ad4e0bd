"""The answer is as long as asked."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt

UNITS = ("words", "characters")


@reward(title="Length")
def length(prompt: Prompt, text: str, target: int = 0, most: int = 200, soft: int = 50, unit: str = "words") -> float:
    """Length: 1 within bounds, falling to 0 over `soft` words (or characters) outside them.

    r = max(0, 1 - excess / soft);  excess = |n - target| with a target, else max(0, n - most)
    soft=0 makes it a hard limit. Without a target an empty text scores 1: add a reward for what it says.
    """
    n = len(text.split()) if unit == "words" else len(text)
    excess = abs(n - target) if target else max(0, n - most)
    if excess == 0:
        return 1.0
    return max(0.0, 1.0 - excess / soft) if soft else 0.0


def ready(unit: str = "words", target: int = 0, soft: int = 50, **_: object) -> None:
    """Refuse a unit that does not exist, and bounds below zero, before a run starts."""
    if unit not in UNITS:
        raise UserError(f"length counts in {' or '.join(UNITS)}, not in {unit!r}; write unit='words'")
    if target < 0 or soft < 0:
        raise UserError(f"length takes target >= 0 and soft >= 0, got target={target}, soft={soft}")


def validate() -> list[str]:
    """Gold passes, corrupted fails."""
    prompt = Prompt.text("length", "Say four words.")
    four = length.but(target=4, soft=2)
    return problems(four, [(prompt, "one two three four", "one two three"), (prompt, "a b c d", "a b c d e f g")])
