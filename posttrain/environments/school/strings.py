"""Letters moved about: reverse, replace, remove, join, pick; spelled out first.

Habit: the last letter is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver
from posttrain.environments.school.words import word

DEFAULT_LEVEL = 3
Made = tuple[tuple[str, ...], str, str]  # what the question is about, answer, steps


def _short(items: list[str], hand: NoisySolver) -> list[str]:
    """The items; by habit without the last of them."""
    return items[:-1] if hand.habit and len(items) > 1 else items


def _told(about: tuple[str, ...], after: list[str], hand: NoisySolver) -> Made:
    after = _short(after, hand)
    return about, "".join(after), f"{' '.join(about[0])} -> {' '.join(after)}"


def reverse(rng: Random, n: int, hand: NoisySolver) -> Made:
    text = word(rng, n)
    return _told((text,), hand.copy(list(text))[::-1], hand)


def upper(rng: Random, n: int, hand: NoisySolver) -> Made:
    text = word(rng, n)
    return _told((text,), [c.upper() for c in hand.copy(list(text))], hand)


def capital(rng: Random, n: int, hand: NoisySolver) -> Made:
    text = word(rng, n)
    after = hand.copy(list(text))
    return _told((text,), [after[0].upper(), *after[1:]], hand)


def remove(rng: Random, n: int, hand: NoisySolver) -> Made:
    text = word(rng, n)
    letter = rng.choice(text if len(set(text)) > 1 else "e")
    return _told((text, letter), [c for c in text if c != letter or hand.slips()], hand)


def replace(rng: Random, n: int, hand: NoisySolver) -> Made:
    text = word(rng, n)
    old = rng.choice(text)
    new = rng.choice("abdeioprstuz".replace(old, ""))
    return _told((text, old, new), [new if c == old and not hand.slips() else c for c in text], hand)


def double(rng: Random, n: int, hand: NoisySolver) -> Made:
    text = word(rng, max(3, n - 2))
    return _told((text,), [c + c for c in hand.copy(list(text))], hand)


def alternate(rng: Random, n: int, hand: NoisySolver) -> Made:
    text = word(rng, n)
    return _told((text,), hand.copy(list(text))[1::2], hand)


def nth(rng: Random, n: int, hand: NoisySolver) -> Made:
    """From the second letter on, so that habit can stop one short."""
    text, i = word(rng, n), rng.randint(2, n)
    seen = _short(hand.copy(list(text))[:i], hand)
    return (text, str(i)), seen[-1], " ".join(f"{c}{k}" for k, c in enumerate(seen, 1))


def last(rng: Random, n: int, hand: NoisySolver) -> Made:
    """The first letter is the last one seen when reading backwards."""
    text, end = word(rng, n), rng.choice(("first", "last"))
    seen = _short(hand.copy(list(text))[:: 1 if end == "last" else -1], hand)
    return (text, end), seen[-1], " ".join(seen)


def join(rng: Random, n: int, hand: NoisySolver) -> Made:
    a, b = word(rng, max(2, n // 2)), word(rng, max(2, n - n // 2))
    after = _short(hand.copy(list(a + b)), hand)
    return (a, b), "".join(after), " ".join(after)


def initials(rng: Random, n: int, hand: NoisySolver) -> Made:
    words = [word(rng, rng.randint(3, 5)) for _ in range(max(2, n // 2 + 1))]
    firsts = _short(hand.copy([w[0] for w in words]), hand)
    return (" ".join(words),), "".join(firsts), " ".join(firsts)


Move = Callable[[Random, int, NoisySolver], Made]
_ASK: dict[Move, tuple[str, ...]] = {
    reverse: ("Reverse {0}.", "Now reverse {0}.", "Write {0} backwards.", "Show {0} backwards."),
    upper: (
        "Write {0} in capital letters.",
        "Now write {0} in capital letters.",
        "Put {0} in upper case.",
        "Show {0} in upper case.",
    ),
    capital: (
        "Write {0} with a capital first letter.",
        "Now write {0} with a capital first letter.",
        "Begin {0} with a capital letter.",
        "Show {0} with a capital first letter.",
    ),
    remove: (
        "Remove every {1} from {0}.",
        "Now remove every {1} from {0}.",
        "Write {0} without the letter {1}.",
        "Show {0} without the letter {1}.",
    ),
    replace: (
        "Replace {1} with {2} in {0}.",
        "Now replace {1} with {2} in {0}.",
        "In {0}, change every {1} to {2}.",
        "Show {0} with every {1} changed to {2}.",
    ),
    double: (
        "Write each letter of {0} twice.",
        "Now write each letter of {0} twice.",
        "Double each letter of {0}.",
        "Show each letter of {0} twice.",
    ),
    alternate: (
        "Take every second letter of {0}.",
        "Now take every second letter of {0}.",
        "Write every second letter of {0}.",
        "Show every second letter of {0}.",
    ),
    nth: (
        "What is letter {1} of {0}?",
        "Now take letter {1} of {0}.",
        "Which letter is number {1} in {0}?",
        "Show letter {1} of {0}.",
    ),
    last: (
        "What is the {1} letter of {0}?",
        "Now take the {1} letter of {0}.",
        "Which letter is the {1} in {0}?",
        "Show the {1} letter of {0}.",
    ),
    join: ("Join {0} and {1}.", "Now join {0} and {1}.", "Put {0} and {1} together.", "Show {0} and {1} together."),
    initials: (
        "Join the first letters: {0}.",
        "Now join the first letters: {0}.",
        "Put the first letters together: {0}.",
        "Show the first letters: {0}.",
    ),
}
_EASY: tuple[Move, ...] = (capital, nth, last, join, upper, reverse)
_ALL: tuple[Move, ...] = (capital, nth, join, initials, upper, reverse, reverse, remove, replace, double, alternate)


def make(rng: Random, level: int, hand: NoisySolver = CAREFUL) -> Problem:
    """Level 1: 3 letters and easy moves. Level 3: 5 to 6 letters, any move. Level 6: 11 to 12 letters."""
    wording = hand.reads(rng, 4)
    n = rng.randint(*((3, 3), (4, 5), (5, 6), (6, 8), (8, 10), (11, 12))[level - 1])
    move = rng.choice(_EASY if level == 1 else _ALL)
    about, answer, steps = move(rng, n, hand)
    return Problem(_ASK[move][wording].format(*about), answer, steps, {"wording": wording})


def check(prompt: Prompt, answer: str) -> bool:
    """Letters must match, with case; spaces between them do not matter, so `e n o t s` is `enots`."""
    return bool("".join(answer.split()).rstrip(".") == prompt.answer)
