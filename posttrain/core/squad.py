"""Short answers compared as SQuAD compares them: without case, punctuation and articles; the whole text, or the words they share."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_MARKS = str.maketrans("", "", string.punctuation)


def normal(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_MARKS)).split())


def exact(answer: str, golds: Iterable[object]) -> bool:
    """Whether the answer is one of the gold ones, each in its normal form; an empty one is none."""
    said = normal(answer)
    return bool(said) and any(said == normal(str(gold)) for gold in golds)


def word_f1(answer: str, golds: Iterable[object]) -> float:
    """2 PR / (P + R) over the words that an answer and a gold one share, the best over the gold ones."""
    return max((_f1(normal(answer).split(), normal(str(gold)).split()) for gold in golds), default=0.0)


def _f1(said: list[str], gold: list[str]) -> float:
    both = sum((Counter(said) & Counter(gold)).values())
    return 2 * both / (len(said) + len(gold)) if both else 0.0
