"""The answer is the right letter of a multiple-choice question."""

from __future__ import annotations

import re
from functools import cache

from posttrain.core.answers import final_answer, golds, marked, offered, same
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt

_NOT = r"(?i:\bnot|n't|\bnever|\bneither|\bnor)\s+(?:(?i:the|option|choice|answer)\s+)*"
# words after "A" or "I" that make it a choice and no article or pronoun
_VERB = r"(?:and|or|nor|but|is|isn|are|was|were|as|because|since|has|does|can|cannot|would|could|must|should|seems|fits|works|not)\b"


@reward(title="Multiple choice")
def choice(prompt: Prompt, text: str, letters: str = "ABCDE") -> float:
    """Multiple choice: 1 when the text settles on the gold letter, and on no other.

    Read from what is marked, else from "the answer is (B)", else from the last line if it holds one letter only.
    The gold answer is a letter, an index into prompt.info["choices"], or the text of one of them. A question with more
    choices than `letters` has as many letters as choices.
    """
    letters = letters_of(prompt, letters)
    return float(pick(text, letters) in {_letter(prompt, g, letters) for g in golds(prompt)})


def letters_of(prompt: Prompt, letters: str = "ABCDE") -> str:
    """The letters that an answer may have."""
    count = len(prompt.info.get("choices") or offered(prompt.last))
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:count] if count > len(letters) else letters


def pick(text: str, letters: str = "ABCDE") -> str | None:
    """The one letter a text settles on; None when it names several, as a list of all choices does.

    What is marked; else the last "the answer is B"; else a line that is a letter and nothing else; else the only letter of the last
    line, if it is not denied there ("not B"); else the only one that is called an option ("Option A is odd" settles on nothing where
    another letter is named too).
    """
    tail = final_answer(text)
    if not tail:
        return None
    mark = marked(tail)
    if mark is not None:
        return _alone(mark, letters) or _only(mark, letters)
    said = list(_said(letters).finditer(tail))
    if said:
        return None if said[-1]["more"] else (said[-1]["letter"] or said[-1]["low"]).upper()
    lines = tail.splitlines()
    alone = {found for line in lines if (found := _alone(line, letters))}
    if alone:
        return alone.pop() if len(alone) == 1 else None
    if _letters(lines[-1], letters):
        return _only(lines[-1], letters)
    named = set(re.findall(rf"(?i:answer|choice|option)\s*[(\[]?([{letters}])(?![\w'])", tail))
    return named.pop() if len(named) == 1 else None


def _alone(line: str, letters: str) -> str | None:
    """The letter that is all of a line, in either case: `b`, `(B)`, `**B.**`."""
    hit = re.fullmatch(rf"[\W_]*([{letters}{letters.lower()}])[\W_]*", line)
    return hit[1].upper() if hit else None


def _letters(line: str, letters: str) -> set[str]:
    return set(re.findall(rf"(?<![\w'])[{letters}](?![\w'])", line))


def _only(line: str, letters: str) -> str | None:
    found = _letters(line, letters)
    for word in ("A", "I"):  # the article, the pronoun
        if len(found) == 2 and word in found and re.search(rf"(?<![\w']){word}\s+(?!{_VERB})[a-z]", line):
            found.discard(word)
    denied = set(re.findall(rf"{_NOT}[(\[*]*([{letters}])(?![\w'])", line))
    return found.pop() if len(found) == 1 and not found <= denied else None


@cache
def _said(letters: str) -> re.Pattern[str]:
    small = letters.lower()  # only where nothing else of the sentence follows: "is a good one", "is e.g."
    low = rf"(?!a\s*\Z)(?P<low>[{small}])(?=[)\]]|\.?\**[ \t]*(?:\n|\Z))"
    one = rf"\**\s*(?:(?i:option|choice|letter)\s+)?[(\[]?(?:(?P<letter>[{letters}])|{low})[)\]]?\**(?![\w'])"
    more = rf"(?P<more>\s*(?:,|/|&|or|and)\s*\(?[{letters}]\b)?"  # "A or B" settles on nothing
    return re.compile(rf"(?i:answer|choice|option)\**\s*(?i:is|would be|should be|must be|:|=)\s*:?\s*{one}{more}")


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
