"""How many letters, vowels, words, items: counted aloud, one by one.

Habit: the first one that counts is missed.
"""

from __future__ import annotations

from random import Random

from posttrain.environments.base import Problem
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver
from posttrain.environments.school.words import ANIMALS, COLOURS, ITEMS, word

DEFAULT_LEVEL = 3
_POOLS = (ANIMALS, COLOURS, ITEMS)
_ASK = {
    "letter": (
        "How many {1} are in {0}?",
        "Count the letter {1} in {0}.",
        "How often does {1} occur in {0}?",
        "Find the number of {1} in {0}.",
    ),
    "vowels": (
        "How many vowels are in {0}?",
        "Count the vowels in {0}.",
        "How often do vowels occur in {0}?",
        "Find the number of vowels in {0}.",
    ),
    "letters": (
        "How many letters has {0}?",
        "Count the letters in {0}.",
        "How long is the word {0}?",
        "Find the number of letters in {0}.",
    ),
    "digit": (
        "How many {1}s are in {0}?",
        "Count the digit {1} in {0}.",
        "How often does {1} occur in {0}?",
        "Find the number of {1}s in {0}.",
    ),
    "words": (
        "How many words: {0}?",
        "Count the words: {0}.",
        "How many things are listed: {0}?",
        "Find the number of words: {0}.",
    ),
    "word": (
        "How many times does {1} occur: {0}?",
        "Count the word {1}: {0}.",
        "How often does {1} occur: {0}?",
        "Find the number of {1}: {0}.",
    ),
}
Task = tuple[str, str, str, list[str], set[str] | None]  # kind, what is searched, what for, its items, those that count


def tally(items: list[str], wanted: set[str] | None, hand: NoisySolver) -> tuple[str, int]:
    """Each item in turn, those that count with the count so far: e in cheese is `c h e1 e2 s e3`, 3."""
    count, said, missed = 0, [], not hand.habit
    for item in hand.copy(items):
        if wanted is not None and item not in wanted:
            said.append(item)
        elif not missed:
            missed = True
            said.append(item)
        else:
            count += hand.pick(1, (0, 1, 2))
            said.append(f"{item}{count}")
    return " ".join(said), count


def _letters(rng: Random, n: int) -> Task:
    text = word(rng, n)
    kind = rng.random()
    if kind < 0.5:
        letter = rng.choice(text) if rng.random() < 0.85 else rng.choice("aeiourst")
        return "letter", text, letter, list(text), {letter}
    if kind < 0.8:
        return "vowels", text, "", list(text), set("aeiou")
    return "letters", text, "", list(text), None


def _digits(rng: Random, n: int) -> Task:
    few = rng.sample("0123456789", 3)
    text = [rng.choice(few) for _ in range(n)]
    # letters stand for the digits that count, so that a digit and its count cannot run together
    return "digit", " ".join(text), few[0], [("x" if d == few[0] else "o") for d in text], {"x"}


def _items(rng: Random, n: int) -> Task:
    pool = rng.choice(_POOLS)
    if rng.random() < 0.35:
        items = [rng.choice(pool) for _ in range(n)]
        return "words", " ".join(items), "", items, None
    few = rng.sample(pool, 3)
    items = [rng.choice(few) for _ in range(n)]
    return "word", " ".join(items), few[0], items, {few[0]}


def make(rng: Random, level: int, hand: NoisySolver = CAREFUL) -> Problem:
    """Level 1: in words of 3 letters. Level 3: 6 letters or 6 items. Level 6: 12."""
    wording = hand.reads(rng, 4)
    n = rng.randint(*((3, 4), (4, 5), (5, 7), (7, 9), (9, 11), (11, 13))[level - 1])
    share = rng.random()
    kind, text, what, items, wanted = (_letters if share < 0.55 else _items if share < 0.85 else _digits)(rng, n)
    steps, count = tally(items, wanted, hand)
    question = _ASK[kind][wording].format(text, what)
    return Problem(question, str(count), steps, {"wording": wording}, identity=f"count {kind} {what} {text}")
