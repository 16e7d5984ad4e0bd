"""The answer is the gold text."""

from __future__ import annotations

from posttrain.core.answers import final, golds, same
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt


@reward(title="Exact match")
def exact_match(prompt: Prompt, text: str, case: bool = False) -> float:
    """Exact match: 1 when the final answer is one of the gold texts.

    r = [final(text) == gold], up to spacing, a closing full stop and (unless case=True) upper case.
    The final answer is what is marked (<answer>, \\boxed{}, ####), else all that follows </think>; none scores 0.
    """
    answer = final(text)
    if answer is None:
        return 0.0
    if case:
        return float(any(" ".join(answer.split()) == " ".join(str(g).split()) for g in golds(prompt)))
    return float(any(same(answer, str(g)) for g in golds(prompt)))


def validate() -> list[str]:
    """Gold passes, corrupted fails."""
    prompt = Prompt.text("exact", "Capital of France?", "Paris")
    thought = (prompt, "<think>Lyon?</think> paris.", "Pari")
    return problems(exact_match, [thought, (prompt, "\\boxed{Paris}", "Paris Paris")])
