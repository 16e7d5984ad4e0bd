"""Numbers or words put in order by taking out the first again and again.

Habit: the wrong way round.
"""

from __future__ import annotations

from random import Random

from posttrain.core.answers import plain
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver
from posttrain.environments.school.words import ANIMALS, BY_LENGTH, COLOURS, ITEMS

DEFAULT_LEVEL = 3
_UP = (
    "Sort from small to large: {}.",
    "Arrange from small to large: {}.",
    "Put in order, smallest first: {}.",
    "List in ascending order: {}.",
)
_DOWN = (
    "Sort from large to small: {}.",
    "Arrange from large to small: {}.",
    "Put in order, largest first: {}.",
    "List in descending order: {}.",
)
_WORDS = (
    "Sort by the alphabet: {}.",
    "Arrange by the alphabet: {}.",
    "Put in alphabetical order: {}.",
    "List from a to z: {}.",
)
_SIMILAR: dict[str, list[str]] = {}
for _w in (*ANIMALS, *COLOURS, *ITEMS, *BY_LENGTH[4]):
    _SIMILAR.setdefault(_w[0], []).append(_w)
_SIMILAR = {first: sorted(set(words)) for first, words in _SIMILAR.items() if len(set(words)) >= 3}


def select(items: list[str], order: list[str], hand: NoisySolver) -> tuple[str, list[str]]:
    """Selection sort: what comes first, then what is left. 5 2 9 is `2: 5 9; 5: 9; 9`."""
    left, taken, said = list(items), [], []
    ranked = list(order)
    while left:
        first = hand.pick(ranked[0], ranked[:2])
        ranked.remove(first)
        left.remove(first)
        if left and hand.slips():
            ranked.remove(lost := left[-1])  # forgotten while copying the rest
            left.remove(lost)
        taken.append(first)
        said.append(f"{first}: {' '.join(left)}" if left else first)
    return "; ".join(said), taken


def make(rng: Random, level: int, hand: NoisySolver = CAREFUL) -> Problem:
    """Level 1: 3 digits. Level 3: 4 numbers below 100, or 4 words. Level 6: 7 numbers below 1000, or words alike."""
    wording = hand.reads(rng, 4)
    n = (3, 3, 4, 5, 6, 7)[level - 1]
    if level >= 2 and rng.random() < 0.35:
        items = _similar(rng, n) if level >= 4 else rng.sample(rng.choice((ANIMALS, COLOURS, ITEMS)), n)
        asks, order = _WORDS, sorted(items)
    else:
        numbers = rng.sample(range(1, (10, 50, 100, 100, 100, 1000)[level - 1]), n)
        down = rng.random() < 0.5
        items = [str(x) for x in numbers]
        asks, order = (_DOWN if down else _UP), [str(x) for x in sorted(numbers, reverse=down)]
    steps, taken = select(items, order[::-1] if hand.habit else order, hand)
    listed = " ".join(items)
    identity = f"sort {listed} {order[0]}"
    return Problem(asks[wording].format(listed), " ".join(taken), steps, {"wording": wording}, identity)


def _similar(rng: Random, n: int) -> list[str]:
    """Words of which several share their first letter."""
    pool = [w for first in rng.sample(sorted(_SIMILAR), 3) for w in _SIMILAR[first]]
    return rng.sample(pool, n)


def check(prompt: Prompt, answer: str) -> bool:
    """The items in order, with spaces or commas between them."""
    return plain(answer.replace(",", " ")) == plain(prompt.answer)
