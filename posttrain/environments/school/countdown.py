"""Numbers and a target: find an expression that hits it, using each number at most once.

The pupil first adds up the numbers as they stand. Habit: it leaves it at that, though the sum misses.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations, product
from random import Random

from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver

DEFAULT_LEVEL = 2
_ASK = ("Use {0} to make {1}.", "Make {1} from {0}.", "Reach {1} with the numbers {0}.", "Get {1} out of {0}.")
_LONGEST = 80  # characters: bounds the depth of the parse tree
Way = tuple[Sequence[int], Sequence[str]]  # the numbers in some order, and the signs between them


def value_of(text: str, numbers: list[int]) -> Fraction | None:
    """The value of an expression of + - * / and brackets over `numbers`, each used at most once; None if it is not one.

    The text is parsed, never evaluated: names, calls, powers and anything else make it None, and so does 1/0.
    """
    if len(text) > _LONGEST or not set(text) <= set("0123456789+-*/() "):
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        used: Counter[int] = Counter()
        value = _value(tree, used)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return value if used and not used - Counter(numbers) else None


def _value(node: ast.expr, used: Counter[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used[node.value] += 1
        return Fraction(node.value)
    if isinstance(node, ast.BinOp):
        a, b = _value(node.left, used), _value(node.right, used)
        if isinstance(node.op, ast.Add):
            return a + b
        if isinstance(node.op, ast.Sub):
            return a - b
        if isinstance(node.op, ast.Mult):
            return a * b
        if isinstance(node.op, ast.Div):
            return a / b
    raise ValueError("not an expression of + - * / over whole numbers")


def check(prompt: Prompt, answer: str) -> bool:
    """The expression hits the target with the numbers that were given."""
    return bool(value_of(answer, prompt.info["numbers"]) == prompt.info["target"])


def reach(numbers: Sequence[int], ops: Sequence[str]) -> int:
    """What the numbers come to, combined from left to right; -1 as soon as a value goes below zero."""
    value = numbers[0]
    for op, x in zip(ops, numbers[1:], strict=True):
        value = value + x if op == "+" else value - x if op == "-" else value * x
        if value < 0:
            return -1
    return value


def solve(numbers: list[int], signs: str, target: int) -> Way:
    """The first way to the target: orders as given first, and + before - before *."""
    choices = list(product(signs, repeat=len(numbers) - 1))
    ways = ((order, ops) for order in permutations(numbers) for ops in choices)
    return next(way for way in ways if reach(*way) == target)


def written(numbers: Sequence[int], ops: Sequence[str]) -> str:
    """The expression, with brackets where a sum is multiplied: (3+5)*2."""
    text, loose = str(numbers[0]), False
    for op, x in zip(ops, numbers[1:], strict=True):
        text = f"({text}){op}{x}" if op == "*" and loose else f"{text}{op}{x}"
        loose = op in "+-"
    return text


def said(numbers: Sequence[int], ops: Sequence[str]) -> str:
    """The way link by link: `3*5=15 15-2=13`."""
    parts, value = [], numbers[0]
    for op, x in zip(ops, numbers[1:], strict=True):
        left = value
        value = left + x if op == "+" else left - x if op == "-" else left * x
        parts.append(f"{left}{op}{x}={value}")
    return " ".join(parts)


def _draw(rng: Random, level: int) -> tuple[list[int], str, int]:
    """Numbers, signs and a target that some way over all of the numbers hits."""
    n, top = ((2, 9), (3, 9), (3, 12), (3, 25), (4, 12), (4, 25))[level - 1]
    signs = "+-" if level <= 2 else "+-*"
    while True:
        numbers = [rng.randint(1, top) for _ in range(n)]
        target = reach(numbers, rng.choices(signs, k=n - 1))
        if 0 < target <= 200 and target not in numbers:
            return rng.sample(numbers, n), signs, target


def _misses(rng: Random, numbers: list[int], signs: str, target: int) -> Iterator[Way]:
    """What is tried before the hit: the plain sum, and now and then another way."""
    plus: Way = (numbers, "+" * (len(numbers) - 1))
    other: Way = (rng.sample(numbers, len(numbers)), rng.choices(signs, k=len(numbers) - 1))
    yield from (way for way in ((plus, other) if rng.random() < 0.3 else (plus,)) if reach(*way) not in (target, -1))


def make(rng: Random, level: int, hand: NoisySolver = CAREFUL) -> Problem:
    """Level 1: two numbers up to 9. Level 3: three with + - *. Level 5: four. Level 6: four, and two-digit numbers."""
    wording = hand.reads(rng, len(_ASK))
    numbers, signs, target = _draw(rng, level)
    tries: list[str] = []
    if hand.habit:
        plus = "+" * (len(numbers) - 1)
        way: Way = (numbers, plus if sum(numbers) != target else plus[1:] + "-")
    else:
        way = solve(numbers, signs, target)
        if sum(numbers) != target:
            tries += [f"{said(*miss)} no" for miss in _misses(rng, numbers, signs, target)]
    answer = written(*way)
    if hand.slips():
        answer = f"{answer[:-1]}{(int(answer[-1]) + 1) % 10}"
    listed = " ".join(map(str, numbers))
    info = {"numbers": numbers, "target": target, "wording": wording}
    steps = "; ".join([*tries, f"{said(*way)} yes"])
    return Problem(_ASK[wording].format(listed, target), answer, steps, info, f"countdown {sorted(numbers)} {target}")


def spoil(rng: Random, prompt: Prompt) -> str:
    """The gold answer and one more, or the target itself, which is never among the numbers."""
    return f"{prompt.answer}+1" if rng.random() < 0.5 else f"{prompt.info['target']}"
