"""The answer is the right letter of a multiple-choice question."""

from __future__ import annotations

import re
from functools import cache

from posttrain.core.answers import final_answer, golds, marked, offered, same
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt


@reward(title="Multiple choice")
def choice(prompt: Prompt, text: str, letters: str = "ABCDE") -> float:
    """Multiple choice: 1 when the text settles on the gold letter, and on no other.

    Read from what is marked, else from "the answer is (B)", else from the last line if it holds one letter only.
    The gold answer is a letter, an index into prompt.info["choices"], or the text of one of them. A question with more
    choices than `letters` has as many letters as choices.
    """
    count = len(prompt.info.get("choices") or offered(prompt.last))
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:count] if count > len(letters) else letters
    return float(pick(text, letters) in {_letter(prompt, g, letters) for g in golds(prompt)})


def pick(text: str, letters: str = "ABCDE") -> str | None:
    """The one letter a text settles on; None when it names several, as a list of all choices does."""
    tail = final_answer(text)
    if not tail:
        return None
    mark = marked(tail)
    if mark is not None:
        return _only(mark, letters)
    said = list(_said(letters).finditer(tail))
    if said:
        return None if said[-1]["more"] else said[-1]["letter"].upper()
    return _only(tail.splitlines()[-1], letters)


def _only(line: str, letters: str) -> str | None:
    found = set(re.findall(rf"(?<![\w'])[{letters}](?![\w'])", line))
    if len(found) == 2 and "A" in found and re.search(r"(?<![\w'])A\s+[a-z]", line):
        found.discard("A")  # the article
    if len(found) == 2 and "I" in found and re.search(r"(?<![\w'])I\s+[a-z]", line):
        found.discard("I")  # the pronoun
    return found.pop() if len(found) == 1 else None


@cache
def _said(letters: str) -> re.Pattern[str]:
    one = rf"\**[(\[]?(?P<letter>[{letters}])[)\]]?\**(?![\w'])"
    more = rf"(?P<more>\s*(?:,|/|&|or|and)\s*\(?[{letters}]\b)?"  # "A or B" settles on nothing
    return re.compile(rf"(?i:answer|choice|option)\s*(?i:is|would be|:|=)?\s*:?\s*{one}{more}")


def _letter(prompt: Prompt, gold: object, letters: str) -> str:
    choices = list(prompt.info.get("choices") or [])
    if isinstance(gold, int) and not isinstance(gold, bool):
        return letters[gold]
    word = str(gold).strip().strip("().").upper()
    if len(word) == 1 and word in letters:
        return word
    for i, option in enumerate(choices[: len(letters)]):
        if same(str(option), str(gold)):
            return letters[i]
    raise ValueError(f"the gold answer {gold!r} is neither one of {letters} nor one of the choices {choices}")


def validate() -> list[str]:
    """Gold passes, corrupted fails."""
    prompt = Prompt.text("choice", "Which? A) one B) two", "B", choices=["one", "two"])
    said = (prompt, "A is odd, so the answer is (B).", "A, B, C, D, E")
    return problems(choice, [said, (prompt, "b\n\\boxed{B}", "The answer is A")])
