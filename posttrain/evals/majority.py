"""maj@k: is the most frequent of k answers right? (self-consistency, arXiv:2203.11171)"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

from posttrain.core import rng
from posttrain.core.answers import final, is_number, number, plain
from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.rewards.rules.choice import letters_of, pick

SUBSETS = 200  # subsets of k answers that are looked at, where there are more


def vote_of(text: str, prompt: Prompt | None = None, grader: str = "") -> str | None:
    """What an answer votes for, read as its grader reads it: the last number for `numeric`, the letter for `choice`, else its final
    answer, numbers by their value. None where it gives none."""
    if grader == "choice" and prompt is not None:
        return pick(text, letters_of(prompt))
    said = final(text)
    if said is None:
        return None
    value = number(said) if grader == "numeric" or is_number(said) else None
    if value is None:
        return None if grader == "numeric" else plain(said)
    return f"= {value}"


def majority(votes: Sequence[str | None], right: Sequence[bool]) -> float:
    """The chance that a most frequent answer is right: a tie is broken by lot, and answers that vote alike but are graded
    differently count by the share that is right. Nobody votes: 0."""
    cast: dict[str, list[bool]] = {}
    for vote, good in zip(votes, right, strict=True):
        if vote is not None:
            cast.setdefault(vote, []).append(good)
    if not cast:
        return 0.0
    most = max(map(len, cast.values()))
    return _mean([_mean(list(map(float, some))) for some in cast.values() if len(some) == most])


def maj_at_k(votes: Sequence[str | None], right: Sequence[bool], k: int, *identity: object) -> float:
    """Unbiased from n >= k answers: the mean over all subsets of k, or over SUBSETS of them drawn by identity."""
    if not 1 <= k <= len(votes):
        raise UserError(f"maj@{k} needs at least {k} answers per problem, got {len(votes)}")
    chosen = subsets(len(votes), k, *identity)
    return _mean([majority([votes[i] for i in some], [right[i] for i in some]) for some in chosen])


def subsets(n: int, k: int, *identity: object) -> Iterator[Sequence[int]]:
    """All subsets of k places out of n, or SUBSETS of them."""
    if math.comb(n, k) <= SUBSETS:
        return combinations(range(n), k)
    draw = rng.python("majority", n, k, *identity)
    return (draw.sample(range(n), k) for _ in range(SUBSETS))


def _mean(xs: Sequence[float]) -> float:
    return math.fsum(xs) / len(xs)
