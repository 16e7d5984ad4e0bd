"""The answer is the gold number."""

from __future__ import annotations

from fractions import Fraction

from posttrain.core.answers import final, golds, hashed, number
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt


@reward(title="Numeric match")
def numeric(prompt: Prompt, text: str, tolerance: float = 1e-6) -> float:
    """Numeric match: 1 when the last number of the final answer equals the gold number.

    r = [|x - gold| <= tolerance * max(1, |gold|)]
    x is read from what is marked (<answer>, \\boxed{}, ####), else it is the last number after </think>.
    """
    answer = final(text)
    x = number(answer) if answer is not None else None
    if x is None:
        return 0.0
    return float(any(abs(x - g) <= Fraction(tolerance) * max(Fraction(1), abs(g)) for g in map(_gold, golds(prompt))))


def _gold(answer: object) -> Fraction:
    """The gold number; a GSM8K solution is read after its ####."""
    text = str(answer)
    value = number(hashed(text) or text)
    if value is None:
        raise ValueError(f"the gold answer {text[:60]!r} holds no number; grade it with exact_match or math")
    return value


def validate() -> list[str]:
    """Gold passes, corrupted fails."""
    prompt = Prompt.text("numeric", "How much?", "1,234.5")
    hashes = (prompt, "So 3 + 4 ... #### $1234.50", "#### 1234.6")
    return problems(numeric, [hashes, (prompt, "\\boxed{1234.5}", "1234.5 or 7")])
