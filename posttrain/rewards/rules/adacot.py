"""Thinking costs where it was not needed, and so does not thinking where it was."""

from __future__ import annotations

from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.rewards.rules.thinks import thinks


@reward(title="AdaCoT", paper="arXiv:2505.11896")
def adacot(prompt: Prompt, text: str, miss: float = 0.3, over: float = 0.1, form: float = 1.0) -> float:
    """AdaCoT: penalties for a thought that was missing, for one too many, and for broken tags; add it to what is right.

    r = -miss [needed and no thought] - over [not needed and a thought] - form [tags broken]
    `prompt.info["cot"]` says whether the question needs a thought. miss and over move along the frontier of accuracy
    against thinking; the paper names no single values.
    """
    if "cot" not in prompt.info:
        raise ValueError(f"prompt {prompt.id!r} does not say whether it needs a thought; give it info['cot']")
    thought = bool(thinks(prompt, text))
    paid = miss * (bool(prompt.info["cot"]) and not thought) + over * (not prompt.info["cot"] and thought)
    return 0.0 - paid - form * broken(text)


def broken(text: str) -> bool:
    """Other than no tags or one pair of them with an answer behind it."""
    if "<think>" not in text and "</think>" not in text:
        return not text.strip()
    before, _, rest = text.partition("<think>")
    _, closed, answer = rest.partition("</think>")
    return bool(before.strip()) or not closed or not answer.strip() or "<think>" in rest or "</think>" in answer


def validate() -> list[str]:
    """The mode that was needed costs nothing, the other does; broken tags do in any case."""
    hard, easy = Prompt.text("h", "17*23?", "391", cot=True), Prompt.text("e", "2+2?", "4", cot=False)
    right = [(hard, "<think>a</think>391", "<think></think>391"), (easy, "<think></think>4", "<think>a</think>4")]
    return problems(adacot, [*right, (easy, "4", "</think>4")], full=0.0)
