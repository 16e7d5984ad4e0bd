"""Every knight and every knave is named."""

from __future__ import annotations

import re

from posttrain.core.answers import final_answer, golds, marked
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt

_ROLE = re.compile(r"\b([A-Z]\w*)\b\**\s*(?:is|:|=|-)\s*\**\s*(?:an?\s+)?(knight|knave)\b", re.IGNORECASE)


@reward(title="Knights and knaves")
def knights_knaves(prompt: Prompt, text: str) -> float:
    """Knights and knaves: 1 when the final answer gives each person the gold role, and nobody two roles.

    r = [{(name, role) in answer} == {(name, role) in gold}]
    Read from what is marked, else from the last list that starts with (1), else from all that follows </think>.
    """
    tail = final_answer(text)
    if not tail:
        return 0.0
    answer = marked(tail)
    if answer is None:
        answer = tail[max(tail.rfind("(1)"), 0) :]
    return float(any(roles(answer) == roles(str(g)) for g in golds(prompt)))


def roles(text: str) -> set[tuple[str, str]]:
    """Every `Name is a knight` of a text, in lower case."""
    return {(name.lower(), role.lower()) for name, role in _ROLE.findall(text)}


def validate() -> list[str]:
    """Gold passes, corrupted fails."""
    gold = "(1) Zoey is a knight\n(2) Ethan is a knave"
    prompt = Prompt.text("knights", "Who is who?", gold)
    both = gold + "\n(3) Ethan is a knight"
    thought = f"Say Zoey is a knave? No.\n{gold}"
    return problems(knights_knaves, [(prompt, gold, gold.replace("knave", "knight")), (prompt, thought, both)])
