"""A penalty for repetition."""

from __future__ import annotations

from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt


@reward(title="Repetition penalty", paper="arXiv:2502.03373")
def repetition(prompt: Prompt, text: str, n: int = 3) -> float:
    """Repetition penalty: the share of a text's n-grams of words that were there before, as a negative reward.

    r = |distinct n-grams| / |n-grams| - 1, in (-1, 0]; a text shorter than n words scores 0.
    """
    words = text.lower().split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) - 1.0 if grams else 0.0


def validate() -> list[str]:
    """A text without repetition scores 0, a loop less."""
    prompt = Prompt.text("repetition", "Tell a story.")
    loops = [(prompt, "the cat sat on the mat", "a b c a b c a b c"), (prompt, "so", "so so so so so")]
    return problems(repetition, loops, full=0.0)
