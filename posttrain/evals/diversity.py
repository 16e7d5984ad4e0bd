"""How varied answers are: within one prompt, and from prompt to prompt (after arXiv:2310.06452)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from posttrain.core.registry import evaluation

Words = Sequence[Hashable]  # an answer as words or token ids


def ngrams(words: Words, n: int) -> list[tuple[Hashable, ...]]:
    """Every run of n words."""
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


@evaluation(paper="arXiv:2202.13604")
def distinct(answers: Sequence[Words], n: int = 1, vocabulary: int = 1000) -> float:
    """Expectation-adjusted distinct n-grams: different ones, over how many a uniform writer would have used.

    EAD = N / (V (1 - ((V - 1)/V)^C));  N different of C n-grams, V = vocabulary.  Unlike N/C it does not punish length.
    Answers too short to have one give nan.
    """
    seen = [g for words in answers for g in ngrams(words, n)]
    if not seen:
        return float("nan")
    return len(set(seen)) / (vocabulary * (1 - ((vocabulary - 1) / vocabulary) ** len(seen)))


def diversity(answers: Sequence[Words], orders: Sequence[int] = (1, 2, 3), vocabulary: int = 1000) -> float:
    """The mean of `distinct` over orders of n-grams; orders that no answer is long enough for are left out."""
    found = [x for x in (distinct(answers, n, vocabulary) for n in orders) if x == x]
    return sum(found) / len(found) if found else float("nan")


def per_input(
    answers_PG: Sequence[Sequence[Words]], vocabulary: int = 1000, orders: Sequence[int] = (1, 2, 3)
) -> float:
    """Diversity among the answers to one prompt, averaged over prompts."""
    found = [x for x in (diversity(answers, orders, vocabulary) for answers in answers_PG) if x == x]
    return sum(found) / len(found) if found else float("nan")


def across_input(
    answers_PG: Sequence[Sequence[Words]], vocabulary: int = 1000, orders: Sequence[int] = (1, 2, 3)
) -> float:
    """Diversity from prompt to prompt: of the first answers, the second answers, and so on, averaged."""
    columns = list(zip(*answers_PG, strict=True))
    found = [x for x in (diversity(answers, orders, vocabulary) for answers in columns) if x == x]
    return sum(found) / len(found) if found else float("nan")
