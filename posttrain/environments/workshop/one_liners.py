"""One-line Python functions for a described task; a program is right when it passes held-out calls in the sandbox.

Level 1: arithmetic on a number. Level 2: slices of lists and strings. Level 3: comprehensions. Habits: constants off by one; the value
computed and not returned; a function of another name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from posttrain.core import rng as draws
from posttrain.core.answers import final_answer
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.workshop.scene import Expert, worded
from posttrain.sandbox.available import sandbox
from posttrain.sandbox.grade import grade
from posttrain.sandbox.row_tests import read_tests
from posttrain.sandbox.types import Limits, Program, Sandbox

DEFAULT_LEVEL = 1
HABITS = {"off_by_one": 5.0, "no_return": 1.0, "other_name": 1.0}
TESTS = 6
_LIMITS = Limits(seconds=6.0, cpu=6.0, memory=256 << 20)
Form = tuple[str, str, str, Callable[[Any, int, int], Any]]  # argument, words, code, what it computes

_FORMS: tuple[tuple[Form, ...], ...] = (
    (
        ("x", "{a} times x plus {b}", "x * {a} + {b}", lambda x, a, b: x * a + b),
        ("x", "x squared minus {a}", "x * x - {a}", lambda x, a, b: x * x - a),
        ("x", "the remainder of x divided by {a}", "x % {a}", lambda x, a, b: x % a),
        ("x", "x divided by {a}, rounded down", "x // {a}", lambda x, a, b: x // a),
        ("x", "the larger of x and {a}{b}", "max(x, {a}{b})", lambda x, a, b: max(x, int(f"{a}{b}"))),
        ("x", "{a}{b} minus x", "{a}{b} - x", lambda x, a, b: int(f"{a}{b}") - x),
    ),
    (
        ("xs", "the first {a} of xs", "xs[:{a}]", lambda x, a, b: x[:a]),
        ("xs", "the last {a} of xs", "xs[-{a}:]", lambda x, a, b: x[-a:]),
        ("xs", "xs without its first {a}", "xs[{a}:]", lambda x, a, b: x[a:]),
        ("xs", "the largest of xs plus {a}{b}", "max(xs) + {a}{b}", lambda x, a, b: max(x) + int(f"{a}{b}")),
        ("xs", "the sum of xs times {a}", "sum(xs) * {a}", lambda x, a, b: sum(x) * a),
        ("s", "s repeated {a} times", "s * {a}", lambda s, a, b: s * a),
        ("s", "s backwards and then its first {a} letters", "s[::-1] + s[:{a}]", lambda s, a, b: s[::-1] + s[:a]),
    ),
    (
        ("xs", "the sum of those of xs greater than {a}{b}", "sum(n for n in xs if n > {a}{b})", lambda x, a, b: sum(n for n in x if n > int(f"{a}{b}"))),
        ("xs", "each of xs times {a} plus {b}", "[n * {a} + {b} for n in xs]", lambda x, a, b: [n * a + b for n in x]),
        ("xs", "those of xs that {a} divides", "[n for n in xs if n % {a} == 0]", lambda x, a, b: [n for n in x if n % a == 0]),
        ("xs", "how many of xs are smaller than {a}{b}", "len([n for n in xs if n < {a}{b}])", lambda x, a, b: len([n for n in x if n < int(f"{a}{b}")])),
        ("xs", "the squares of xs, each minus {a}", "[n * n - {a} for n in xs]", lambda x, a, b: [n * n - a for n in x]),
    ),
)  # fmt: skip


def make(rng: Random, level: int) -> Problem:
    """Write f(x) that returns 3 times x plus 4; tests are drawn for the question and are no part of it."""
    argument, words, code, computes = rng.choice(_FORMS[level - 1])
    a, b = rng.randint(2, 7), rng.randint(2, 8)
    question = f"Write f({argument}) that returns {words.format(a=a, b=b)}."
    inputs = draws.python("one liners", question)
    given = [_input(inputs, argument, (a, b)) for _ in range(TESTS)] + ([0, 1] if argument == "x" else [])
    tests = [{"name": "f", "args": [x], "expected": computes(x, a, b)} for x in given]
    wrong = code.format(a=a + 1, b=b + 1)
    wording, text = worded(rng, question)
    answer = f"def f({argument}): return {code.format(a=a, b=b)}"
    info = {"tests": tests, "wrong": f"def f({argument}): return {wrong}", "wording": wording}
    return Problem(text, answer, info=info, identity=question)


def _input(rng: Random, kind: str, constants: tuple[int, int]) -> Any:
    """A number, a list or a word; lists have numbers at the limits of the question, where off by one shows."""
    a, b = constants
    edge = int(f"{a}{b}")
    if kind == "x":
        return rng.choice((rng.randint(0, edge), edge + 1, edge + rng.randint(2, 40)))
    if kind == "s":
        return "".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randint(9, 12)))
    numbers = [rng.randint(0, 99) for _ in range(8)] + [edge, edge + 1, edge - 1, a * rng.randint(1, 9)]
    rng.shuffle(numbers)
    return numbers


def check(prompt: Prompt, answer: str, allow_unsafe_code: bool = False) -> float:
    """1 when the program passes all its tests. They run in the sandbox; where there is none, it is refused with what to do."""
    source = program(answer)
    if not source:
        return 0.0
    found = grade(_box(os.getpid(), allow_unsafe_code), Program("python", source), read_tests(prompt.info), _LIMITS)
    return float(found.passed == found.total)


def program(answer: str) -> str:
    """What was written, without thoughts and without the fence around it."""
    said = (final_answer(answer) or "").strip()
    return said.removeprefix("```python").removeprefix("```").removesuffix("```").strip()


@cache
def _box(process: int, allow_unsafe_code: bool) -> Sandbox:
    """The sandbox of this process: a fork must not give orders to its parent's interpreter."""
    return sandbox(allow_unsafe_code)


def spoil(rng: Random, prompt: Prompt) -> str:
    """A wrong program, for `validate`."""
    return str(prompt.info["wrong"])


def expert(prompt: Prompt, habit: str, rng: Random) -> Expert:
    gold = str(prompt.answer)
    if habit == "off_by_one":
        yield str(prompt.info["wrong"])
    elif habit == "no_return":
        yield gold.replace(": return ", ": ")
    elif habit == "other_name":
        yield gold.replace("def f(", "def g(")
    else:
        yield gold
