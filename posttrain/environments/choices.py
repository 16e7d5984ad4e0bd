"""Multiple choice: the choices of a row in every common layout, and which letter the gold answer is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.core.answers import same

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_KEYS = (("label", "key", "letter", "id"), ("text", "value", "content"))  # of a choice that is an object


def choices_of(value: Any) -> tuple[list[str], list[str]]:
    """(texts, labels) of a list of choices (MMLU), of {"text": [...], "label": [...]} (ARC), of {"A": text, ...} or of a list of
    {"key": ..., "value": ...} (MedQA); none for no choices.

    ValueError says what is wrong with the value.
    """
    listed, named = _laid_out(value)
    if not listed:
        return [], []
    if not isinstance(listed, (list, tuple)) or not 2 <= len(listed) <= len(LETTERS) or not all(map(_is_text, listed)):
        raise ValueError(f"choices are a list of 2 to {len(LETTERS)} texts, got {value!r:.80}")
    labels = [str(x).strip() for x in named]
    if labels and (len(labels) != len(listed) or len(set(labels)) < len(labels)):
        raise ValueError(f"choices have a label each, and no label twice, got {labels!r:.80} for {len(listed)} texts")
    return [str(c) for c in listed], labels


def _laid_out(value: Any) -> tuple[Any, Any]:
    """(texts, labels) as they stand in a value; no labels where it has none."""
    if isinstance(value, Mapping):
        if "text" in value:
            return value["text"], value.get("label") or ()
        there = {k: v for k, v in value.items() if v is not None}  # Parquet writes null for a choice that others have
        return list(there.values()), list(there)
    if isinstance(value, (list, tuple)) and value and all(isinstance(c, Mapping) for c in value):
        labels, texts = ([next((c[n] for n in names if n in c), None) for c in value] for names in _KEYS)
        return texts, [] if None in labels else labels
    return value, ()


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, int, float))


def letter_of(gold: Any, texts: list[str], labels: list[str]) -> str:
    """The letter that the question shows before the gold choice.

    The gold answer is one of the labels where the row has them; else a letter, a place counted from 0, or the text of a
    choice. ValueError where it is none of these, or could be two.
    """
    word = str(gold).strip()
    for shown, told in ((labels, word), ([_bare(x) for x in labels], _bare(word))):
        if shown.count(told) == 1:
            return LETTERS[shown.index(told)]
    if isinstance(gold, bool) or not isinstance(gold, (str, int)):
        raise ValueError(f"the gold answer of a multiple choice is a letter, a place or a text, got {gold!r:.80}")
    same_text = [i for i, text in enumerate(texts) if same(text, word)]
    by_letter = _by_letter(word, len(texts))
    by_place = int(word) if word.isascii() and word.isdigit() and len(word) < 3 else None
    if isinstance(gold, str) and len(same_text) == 1:
        if by_letter is not None and by_letter != same_text[0]:
            raise ValueError(f"the gold answer {gold!r} is the letter of one choice and the text of another")
        if by_place is not None and by_place < len(texts) and by_place != same_text[0] and not labels:
            raise ValueError(
                f"the gold answer {gold!r} is the place of one choice and the text of another; write its letter"
            )
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


def _bare(word: str) -> str:
    """`(b)` and `B.` are the letter B."""
    return word.strip("().").upper()


def _by_letter(word: str, count: int) -> int | None:
    bare = _bare(word)
    return LETTERS.index(bare) if len(bare) == 1 and bare in LETTERS[:count] else None


def listed(texts: list[str]) -> str:
    """The choices as the lines that go under the question."""
    return "".join(f"\n{letter}) {text}" for letter, text in zip(LETTERS, texts, strict=False))
