"""Sums, differences, products and short chains, worked out column by column.

Habit: carries and borrows are forgotten; where there are none, the last sign is misread.
"""

from __future__ import annotations

from random import Random

from posttrain.environments.base import Problem
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver

DEFAULT_LEVEL = 3
_ASK = ("What is {}?", "Compute {}.", "Calculate {}.", "{} = ?", "Work out {}.", "How much is {}?")
_MISREAD = {"+": "-", "-": "+", "*": "+"}


def add(a: int, b: int, hand: NoisySolver) -> tuple[str, int]:
    """Columns from the right, carrying: 47+38 is `7+8=15 4+3+1=8`, 85."""
    parts: list[str] = []
    value, place, carry = 0, 1, 0
    while a or b or not parts:
        a, x = divmod(a, 10)
        b, y = divmod(b, 10)
        carry = 0 if hand.habit else carry
        s = hand.number(x + y + carry)
        parts.append(f"{x}+{y}+{carry}={s}" if carry else f"{x}+{y}={s}")
        carry, digit = divmod(s, 10)
        value += digit * place
        place *= 10
    return " ".join(parts), value + carry * place


def subtract(a: int, b: int, hand: NoisySolver) -> tuple[str, int]:
    """Columns from the right, borrowing, for a >= b >= 0: 52-38 is `12-8=4 5-3-1=1`, 14."""
    parts: list[str] = []
    value, place, borrow = 0, 1, 0
    while a or not parts:
        a, x = divmod(a, 10)
        b, y = divmod(b, 10)
        lack = x < y + borrow
        d = hand.number(x + 10 * lack - y - borrow) % 10
        parts.append(f"{x + 10 * lack}-{y}-{borrow}={d}" if borrow else f"{x + 10 * lack}-{y}={d}")
        borrow = 0 if hand.habit else int(lack)
        value += d * place
        place *= 10
    return " ".join(parts), value


def times_digit(a: int, d: int, hand: NoisySolver) -> tuple[str, int]:
    """Columns from the right, carrying: 47*6 is `7*6=42 4*6+4=28`, 282."""
    parts: list[str] = []
    value, place, carry = 0, 1, 0
    while a or not parts:
        a, x = divmod(a, 10)
        carry = 0 if hand.habit else carry
        s = hand.number(x * d + carry)
        parts.append(f"{x}*{d}+{carry}={s}" if carry else f"{x}*{d}={s}")
        carry, digit = divmod(s, 10)
        value += digit * place
        place *= 10
    return " ".join(parts), value + carry * place


def times(a: int, b: int, hand: NoisySolver) -> tuple[str, int]:
    """One row a digit of b, then their sum: 47*36 is 47*6 and 47*30 and 282+1410."""
    if b < 10:
        return times_digit(a, b, hand)
    rows, total, place = [], 0, 1
    while b:
        b, d = divmod(b, 10)
        text, value = times_digit(a, d, hand)
        rows.append(f"{text} -> {value * place}")
        if place > 1:
            sums, value = add(total, value * place, hand)
            rows.append(f"{sums} -> {value}" if b else sums)
        total, place = value, place * 10
    return "; ".join(rows), total


def work(a: int, op: str, b: int, hand: NoisySolver) -> tuple[str, int]:
    """Any of + - * on integers of any sign, brought back to columns of natural numbers."""
    if op == "*":
        sign = -1 if (a < 0) != (b < 0) else 1
        text, value = times(abs(a), abs(b), hand)
        return text, sign * value
    if op == "-":
        b = -b
    if (a < 0) == (b < 0) or not a or not b:
        sign = -1 if a < 0 or b < 0 else 1
        text, value = add(abs(a), abs(b), hand)
        return text, sign * value
    sign = 1 if (abs(a) >= abs(b)) == (a > 0) else -1
    text, value = subtract(max(abs(a), abs(b)), min(abs(a), abs(b)), hand)
    return text, sign * value


def chain(numbers: list[int], ops: list[str], hand: NoisySolver) -> tuple[str, int]:
    """Products first, then left to right; each link is `a+b: columns -> value`."""
    numbers, ops, links = list(numbers), list(ops), []
    while ops:
        i = ops.index("*") if "*" in ops else 0
        a, b = numbers[i], numbers[i + 1]
        text, value = work(a, ops[i], b, hand)
        links.append(f"{a}{ops[i]}{b}: {text} -> {value}")
        numbers[i : i + 2] = [value]
        del ops[i]
    return "; ".join(links), numbers[0]


def _draw(rng: Random, level: int) -> tuple[list[int], list[str]]:
    """Operands and operators of a level; below level 3 no result is negative."""
    r = rng.randint
    kind = rng.random()
    if level <= 2 or kind < 0.45:
        top = (9, 50, 99, 999, 9999, 99999)[level - 1]
        a, b, op = r(top // 10, top), r(1, top), rng.choice("+-")
        if op == "-" and a < b and (level <= 2 or rng.random() < 0.6):
            a, b = b, a
        if level == 2 and kind < 0.3:
            a, b, op = r(2, 9), r(2, 9), "*"
        return [a, b], [op]
    if kind < 0.7:
        top, low = ((99, 9), (99, 9), (99, 99), (999, 99))[level - 3]
        return [r(11, top), r(2, low)], ["*"]
    top = (20, 99, 99, 999)[level - 3]
    ops = rng.choices("+-", k=2)
    if level >= 5:
        ops[rng.randrange(2)] = "*"
        return [r(2, 30 if level == 5 else 99), r(2, 9), r(2, 9)], ops
    return [r(1, top), r(1, top), r(1, top)], ops


def make(rng: Random, level: int, hand: NoisySolver = CAREFUL) -> Problem:
    """Level 1: 3+4. Level 3: 47-62, 38*6, 12+7-15. Level 6: 48213-9120, 417*38, 58-7*9."""
    wording = hand.reads(rng, len(_ASK))
    numbers, ops = _draw(rng, level)
    text = str(numbers[0]) + "".join(f"{op}{x}" for op, x in zip(ops, numbers[1:], strict=True))
    steps, value = chain(numbers, ops, hand)
    if hand.habit and value == chain(numbers, ops, CAREFUL)[1]:
        steps, value = chain(numbers, [*ops[:-1], _MISREAD[ops[-1]]], CAREFUL)
    return Problem(_ASK[wording].format(text), str(value), steps, {"wording": wording}, identity=text)
