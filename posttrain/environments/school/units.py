"""Lengths, weights, times and money in other units.

Habit: the wrong power of ten, as in 1 m = 10 cm or 1 hours = 100 minutes.
"""

from __future__ import annotations

from random import Random

from posttrain.core.answers import plain
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem, as_number
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver

DEFAULT_LEVEL = 3
# (large, small, how many small make one large)
_TENS = (("m", "cm", 100), ("km", "m", 1000), ("kg", "g", 1000), ("cm", "mm", 10), ("dollars", "cents", 100))
_ALL = (*_TENS, ("hours", "minutes", 60), ("minutes", "seconds", 60), ("weeks", "days", 7), ("days", "hours", 24))
_ASK = ("How many {1} are {0}?", "Convert {0} to {1}.", "What is {0} in {1}?", "Change {0} to {1}.")
_MISTAKEN = {10: 100, 100: 10, 1000: 100, 60: 100, 7: 10, 24: 100}
Made = tuple[str, str, str, str]  # what is given, the unit asked for, answer, steps


def taken(factor: int, hand: NoisySolver) -> int:
    """The factor as the pupil remembers it."""
    return _MISTAKEN[factor] if hand.habit else factor


def decimal(x: int, factor: int) -> str:
    """x / factor in plain decimals, for factors that are powers of ten: (2500, 1000) -> 2.5."""
    whole, rest = divmod(x, factor)
    return f"{whole}.{str(rest).zfill(len(str(factor)) - 1).rstrip('0')}" if rest else str(whole)


def down(rng: Random, level: int, hand: NoisySolver) -> Made:
    """Large to small: 3 m is 300 cm."""
    large, small, factor = rng.choice(_TENS if level == 1 else _ALL)
    x, f = rng.randint(2, (9, 12, 20, 40, 99, 250)[level - 1]), taken(factor, hand)
    value = hand.number(x * f)
    return f"{x} {large}", small, f"{value} {small}", f"1 {large} = {f} {small}; {x}*{f}={value}"


def up(rng: Random, level: int, hand: NoisySolver) -> Made:
    """Small to large without a rest: 1200 cm is 12 m."""
    large, small, factor = rng.choice(_TENS if level == 1 else _ALL)
    x, f = rng.randint(2, (9, 12, 20, 40, 99, 250)[level - 1]), taken(factor, hand)
    total = x * factor
    value = decimal(total, f) if hand.habit else str(hand.number(x))
    return f"{total} {small}", large, f"{value} {large}", f"1 {large} = {f} {small}; {total}/{f}={value}"


def mixed(rng: Random, level: int, hand: NoisySolver) -> Made:
    """Two units to the small one: 3 m 20 cm is 320 cm."""
    large, small, factor = rng.choice(_ALL)
    x, rest = rng.randint(1, (9, 9, 9, 12, 20, 40)[level - 1]), rng.randint(1, factor - 1)
    f = taken(factor, hand)
    part = hand.number(x * f)
    value = hand.number(part + rest)
    return f"{x} {large} {rest} {small}", small, f"{value} {small}", f"{x}*{f}={part}; {part}+{rest}={value}"


def split(rng: Random, level: int, hand: NoisySolver) -> Made:
    """Small to two units: 95 minutes is 1 hours 35 minutes."""
    large, small, factor = rng.choice(_ALL)
    total = rng.randint(factor + 1, factor * (9, 9, 4, 9, 12, 30)[level - 1])
    f = taken(factor, hand)
    x = total // f
    part = hand.number(x * f)
    rest = abs(hand.number(total - part))
    steps = f"{x}*{f}={part}; {total}-{part}={rest}"
    return f"{total} {small}", f"{large} and {small}", f"{x} {large} {rest} {small}", steps


def fraction(rng: Random, level: int, hand: NoisySolver) -> Made:
    """Small to large with decimals: 2500 g is 2.5 kg."""
    large, small, factor = rng.choice(_TENS)
    x = rng.randint(1, (9, 20, 99, 99, 500, 999)[level - 1]) * max(1, factor // (10 if level <= 4 else 100))
    f = taken(factor, hand)
    value = decimal(hand.number(x), f)
    return f"{x} {small}", large, f"{value} {large}", f"1 {large} = {f} {small}; {x}/{f}={value}"


_KINDS = ((down, up), (down, up), (down, up, mixed, fraction), *((down, up, mixed, split, fraction),) * 3)


def make(rng: Random, level: int, hand: NoisySolver = CAREFUL) -> Problem:
    """Level 1: 3 m in cm. Level 3: 2 hours 20 minutes in minutes. Level 6: 1437 hours in days and hours."""
    wording = hand.reads(rng, len(_ASK))
    given, asked, answer, steps = rng.choice(_KINDS[level - 1])(rng, level, hand)
    question = _ASK[wording].format(given, asked)
    return Problem(question, answer, steps, {"wording": wording}, identity=f"{given} in {asked}")


def check(prompt: Prompt, answer: str) -> bool:
    """The amount with its unit, or the bare number where one unit was asked for."""
    got, want = plain(answer).split(), plain(prompt.answer).split()
    amounts = [as_number(x) for x in got[::2]] == [as_number(x) for x in want[::2]]
    return bool(got) and None not in map(as_number, got[::2]) and amounts and got[1::2] in (want[1::2], [])


def spoil(rng: Random, prompt: Prompt) -> str:
    """Another amount, or another unit."""
    amount, *rest = prompt.answer.split()
    if rng.random() < 0.3:
        return f"{amount} miles"
    return " ".join([f"{float(amount) + rng.choice((-1, 1, 10)):g}", *rest])
