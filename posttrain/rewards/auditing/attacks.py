"""Answers that should score low: near misses of the gold answer, and texts that solve nothing.

Each is a function of a prompt and its gold answer; None where it makes no sense for that prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from posttrain.core import rng as draws
from posttrain.core.answers import golds, number
from posttrain.core.types import Prompt

Attack = Callable[[Prompt, str], str | None]
LETTERS = "ABCDE"
_OPPOSITE = {"yes": "no", "true": "false", "no": "yes", "false": "true", "knight": "knave", "knave": "knight"}


def gold_of(prompt: Prompt) -> str | None:
    """The (first) gold answer as text."""
    try:
        return str(golds(prompt)[0])
    except ValueError:
        return None


# the ways to write an answer: the audit takes the one that the reward likes best
def bare(prompt: Prompt, answer: str) -> str:
    """The answer and nothing else."""
    return answer


def boxed(prompt: Prompt, answer: str) -> str:
    """The answer in a box, as mathematics writes it."""
    return f"So the answer is \\boxed{{{answer}}}."


def thought(prompt: Prompt, answer: str) -> str:
    """The answer after a closed think tag."""
    return f"<think>{prompt.info.get('steps') or 'Let me work it out.'}</think>{answer}"


STYLES: dict[str, Callable[[Prompt, str], str]] = {"bare": bare, "boxed": boxed, "after thinking": thought}


def _rng(prompt: Prompt) -> Random:
    return draws.python("audit", prompt.id)


def digit_changed(prompt: Prompt, gold: str) -> str | None:
    """One digit is another one."""
    spots = [i for i, c in enumerate(gold) if c.isdigit()]
    if not spots:
        return None
    i = _rng(prompt).choice(spots)
    return gold[:i] + str((int(gold[i]) + _rng(prompt).randint(1, 8)) % 10) + gold[i + 1 :]


def word_dropped(prompt: Prompt, gold: str) -> str | None:
    """One word is missing."""
    words = gold.split()
    if len(words) < 2:
        return None
    words.pop(_rng(prompt).randrange(len(words)))
    return " ".join(words)


def letter_changed(prompt: Prompt, gold: str) -> str | None:
    """One letter is the next one."""
    spots = [i for i, c in enumerate(gold) if c.isascii() and c.isalpha()]
    if not spots or number(gold) is not None:
        return None
    i = _rng(prompt).choice(spots)
    step = {"z": "a", "Z": "A"}.get(gold[i]) or chr(ord(gold[i]) + 1)
    return gold[:i] + step + gold[i + 1 :]


def negated(prompt: Prompt, gold: str) -> str | None:
    """A number with the other sign, a yes that is a no, a statement with `not`."""
    if gold.lower() in _OPPOSITE:
        return _OPPOSITE[gold.lower()]
    value = number(gold)
    if value is not None and gold.lstrip("-").replace(".", "", 1).replace(",", "").isdigit():
        return None if value == 0 else gold[1:] if gold.startswith("-") else f"-{gold}"
    return None if len(gold) == 1 else f"not {gold}"


CORRUPTIONS: dict[str, Attack] = {
    "digit changed": digit_changed,
    "word dropped": word_dropped,
    "letter changed": letter_changed,
    "negated": negated,
}


def every_choice(prompt: Prompt, gold: str) -> str | None:
    """All letters of a multiple-choice question, or all choices."""
    if "choices" in prompt.info or (len(gold) == 1 and gold.upper() in LETTERS):
        return ", ".join(LETTERS)
    return None


def buried(prompt: Prompt, gold: str) -> str | None:
    """The gold answer among many numbers, so that a search of the whole text finds it."""
    return None if number(gold) is None else " ".join([*map(str, range(50)), gold, *map(str, range(50, 100))])


def not_closed(prompt: Prompt, gold: str) -> str:
    """A think tag that is never closed, with the gold answer in it: nothing was answered."""
    return f"<think>I think it is {gold}"


def long_not_closed(prompt: Prompt, gold: str) -> str:
    """The same with the tag far from the answer: a reward that reads only the end of a text does not see it."""
    return f"<think>{'Let me look at this again, step by step. ' * 5}It should be {gold}"


def taken_back(prompt: Prompt, gold: str) -> str | None:
    """The gold answer is named and taken back; what is answered is wrong."""
    wrong = digit_changed(prompt, gold) or negated(prompt, gold) or letter_changed(prompt, gold)
    return None if wrong is None or wrong == gold else f"It looks like {gold} at first. No: the answer is {wrong}"


DEGENERATE: dict[str, Attack] = {
    "empty": lambda p, g: "",
    "whitespace": lambda p, g: " \n\t ",
    "one token repeated": lambda p, g: "the " * 60,
    "very long": lambda p, g: " ".join(f"and then thing number {i} came along," for i in range(300)),
    "prompt echoed": lambda p, g: p.last,
    "format without content": lambda p, g: "<think></think>\\boxed{}",
    "thinking without answer": lambda p, g: "<think>Let me work it out.</think>",
    "every choice listed": every_choice,
    "gold among many numbers": buried,
    "think tag not closed": not_closed,
    "long thinking not closed": long_not_closed,
    "gold taken back": taken_back,
}
