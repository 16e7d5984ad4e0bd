"""The answer is the gold number, or at least a number."""

from __future__ import annotations

from posttrain.core.answers import final, number
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.rewards.rules.numeric import numeric


@reward(title="Partial credit", paper="arXiv:2401.08967")
def partial_credit(prompt: Prompt, text: str, credit: float = 0.1) -> float:
    """Partial credit (ReFT): 1 for the gold number, a little for any other number, 0 where none can be read.

    r = 1 if x == gold, credit if x is another number, 0 if there is none;  x as `numeric` reads it
    """
    if numeric(prompt, text):
        return 1.0
    answer = final(text)
    return credit if answer is not None and number(answer) is not None else 0.0


def validate() -> list[str]:
    """Gold passes, corrupted fails; a wrong number is worth the credit, no number nothing."""
    prompt = Prompt.text("partial", "How much?", "12")
    found = problems(partial_credit, [(prompt, "<think>3*4</think>12", "13"), (prompt, "#### 12", "twelve")])
    found += problems(partial_credit, [(prompt, "13", "twelve"), (prompt, "12 or 13", "<think>12")], full=0.1)
    return found
