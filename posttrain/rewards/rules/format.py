"""The answer has the asked-for shape."""

from __future__ import annotations

from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.rewards.rules import regex as pattern_rule


@reward(title="Think format", paper="arXiv:2501.12948")
def format(prompt: Prompt, text: str, pattern: str = "") -> float:
    """Think format: 1 for <think>thoughts</think>answer, each tag once and neither part empty; else 0.

    With a pattern, 1 when the whole text matches it instead. It says nothing about the answer being right.
    """
    if pattern:
        return float(pattern_rule.regex(prompt, text.strip(), pattern=pattern, whole=True))
    if text.count("<think>") != 1 or text.count("</think>") != 1:
        return 0.0
    before, _, rest = text.partition("<think>")
    thoughts, closed, answer = rest.partition("</think>")
    return float(not before.strip() and bool(closed) and bool(thoughts.strip()) and bool(answer.strip()))


def ready(pattern: str = "", **_: object) -> None:
    """Refuse a pattern that cannot be read before a run starts."""
    pattern_rule.ready(pattern)


def validate() -> list[str]:
    """Gold passes, corrupted fails."""
    prompt = Prompt.text("format", "2+2?")
    good = "<think>two and two</think>4"
    return problems(format, [(prompt, good, good.replace("</think>", "")), (prompt, "\n" + good, "<think></think>4")])
