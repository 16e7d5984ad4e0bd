"""Multiple choice: the choices of a row in every common layout, and which letter the gold answer is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.core.answers import same

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def choices_of(value: Any) -> tuple[list[str], list[str]]:
    """(texts, labels) of a list of choices (MMLU), or of {"text": [...], "label": [...]} (ARC); none for no choices.

    ValueError says what is wrong with the value.
    """
    listed = value.get("text") if isinstance(value, Mapping) else value
    if listed is None:
        return [], []
    if not isinstance(listed, (list, tuple)) or not 2 <= len(listed) <= len(LETTERS):
        raise ValueError(f"choices are a list of 2 to {len(LETTERS)} texts, got {value!r:.80}")
    labels = [str(x).strip() for x in value.get("label") or ()] if isinstance(value, Mapping) else []
    if labels and (len(labels) != len(listed) or len(set(labels)) < len(labels)):
        raise ValueError(f"choices have a label each, and no label twice, got {labels!r:.80} for {len(listed)} texts")
    return [str(c) for c in listed], labels


def letter_of(gold: Any, texts: list[str], labels: list[str]) -> str:
    """The letter that the question shows before the gold choice.

    The gold answer is one of the labels where the row has them; else a letter, a place counted from 0, or the text of a
    choice. ValueError where it is none of these, or could be two.
    """
    word = str(gold).strip()
    if word in labels:
        return LETTERS[labels.index(word)]
    if isinstance(gold, bool) or not isinstance(gold, (str, int)):
        raise ValueError(f"the gold answer of a multiple choice is a letter, a place or a text, got {gold!r:.80}")
    same_text = [i for i, text in enumerate(texts) if same(text, word)]
    by_letter = _by_letter(word, len(texts))
    by_place = int(word) if word.isascii() and word.isdigit() and len(word) < 3 else None
    if isinstance(gold, str) and len(same_text) == 1:
        if by_letter is not None and by_letter != same_text[0]:
            raise ValueError(f"the gold answer {gold!r} is the letter of one choice and the text of another")
        return LETTERS[same_text[0]]
    if by_letter is not None:
        return LETTERS[by_letter]
    if by_place is not None and by_place < len(texts) and not labels:
        return LETTERS[by_place]
    told = (
        f"one of the labels {labels}"
        if labels
        else f"a letter, a place from 0 to {len(texts) - 1}, or one of the texts"
    )
    raise ValueError(f"the gold answer is {gold!r:.60}, expected {told} of the {len(texts)} choices")


def _by_letter(word: str, count: int) -> int | None:
    bare = word.strip("().").upper()
    return LETTERS.index(bare) if len(bare) == 1 and bare in LETTERS[:count] else None


def listed(texts: list[str]) -> str:
    """The choices as the lines that go under the question."""
    return "".join(f"\n{letter}) {text}" for letter, text in zip(LETTERS, texts, strict=False))
