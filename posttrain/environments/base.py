"""Environments: where prompts come from, and how answers are graded.

A new task is one file with one function `make(rng) -> Problem`; `Task` turns it into an Environment whose items are a
function of (seed, index), whose splits never overlap, and which can check its own grader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from posttrain.core import rng as draws
from posttrain.core.answers import final_answer, plain
from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Environment
from posttrain.core.types import Prompt

SPLITS = ("train", "test")
_TRIES = 1000


def size_of(env: Environment, split: str) -> int:
    """How many problems a split has; 0 when they never end. `size` may be a number, or a function of the split."""
    size = getattr(env, "size", 0)
    return int(size(split) if callable(size) else size or 0)


@dataclass(slots=True)
class Problem:
    """A question with its gold answer and, where there is one, a short written way to it.

    identity is what stays the same when the question is put in other words; the split is decided by it.
    """

    question: str
    answer: str
    steps: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    identity: str = ""


def split_of(problem: Problem) -> str:
    """One question in ten is a test question, by the hash of what it asks: key(identity) % 10 == 0."""
    return "test" if draws.key(problem.identity or problem.question) % 10 == 0 else "train"


def same_text(prompt: Prompt, answer: str) -> bool:
    """Equal up to case, spacing and a closing full stop; numbers are compared as numbers."""
    got, want = plain(answer), plain(str(prompt.answer))
    if got == want:
        return True
    a, b = as_number(got), as_number(want)
    return a is not None and a == b


def as_number(text: str) -> float | None:
    """The number a text is, or None; short ASCII decimals only, so `1e9`, `nan` and `1_000` are not numbers."""
    digits = text.removeprefix("-").replace(".", "", 1)
    return float(text) if digits.isascii() and digits.isdigit() and len(digits) <= 15 else None


def corrupt(rng: Random, prompt: Prompt) -> str:
    """A near miss of the gold answer: a number off by a little, or a text with one character changed, lost or added."""
    answer = str(prompt.answer)
    number = as_number(answer)
    if number is not None:
        wrong = number + rng.choice((-10, -2, -1, 1, 2, 10))
        return str(int(wrong)) if wrong == int(wrong) else str(wrong)
    spots = [i for i, c in enumerate(answer) if c.isalnum()]
    if not spots:
        return answer + "q"
    i = rng.choice(spots)
    return answer[:i] + rng.choice(("", "q" if answer[i] not in "qQ" else "z", answer[i] * 2)) + answer[i + 1 :]


@dataclass(frozen=True)
class Task(Environment):
    """An Environment made of one function.

    make draws a problem, check says whether an answer is right, spoil writes a wrong answer for `validate`.
    """

    name: str
    make: Callable[[Random], Problem]
    check: Callable[[Prompt, str], bool | float] = same_text
    spoil: Callable[[Random, Prompt], str] = corrupt
    seed: int = 0
    suffix: str = ""
    info: dict[str, Any] = field(default_factory=dict)

    def prompt(self, index: int, split: str = "train") -> Prompt:
        """Problem number `index` of a split: redrawn, with a new sub-index, until it belongs there."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        for attempt in range(_TRIES):
            problem = self.make(draws.python(self.name, self.seed, split, index, attempt))
            if split_of(problem) == split:
                info = {**self.info, **problem.info, "steps": problem.steps}
                name = f"{self.name}-{self.seed}-{split}-{index}"
                return Prompt.text(name, problem.question + self.suffix, problem.answer, **info)
        raise UserError(f"{self.name}: no {split} question in {_TRIES} draws; make() has too few different questions")

    def grade(self, prompt: Prompt, text: str) -> float:
        """1 for a right final answer, 0 for a wrong, empty or missing one; a task's check may give part marks."""
        answer = final_answer(text)
        return float(self.check(prompt, answer)) if answer else 0.0

    def validate(self, n: int) -> list[str]:
        """Test the grader: gold answers must score 1, spoiled and unfinished ones less. Empty when all is well."""
        problems = []
        for index in range(n):
            prompt = self.prompt(index, SPLITS[index % 2])
            gold = f"<think>{prompt.info['steps']}</think>{prompt.answer}"
            spoiled = self.spoil(draws.python("spoil", prompt.id), prompt)
            if self.grade(prompt, gold) != 1.0 or self.grade(prompt, str(prompt.answer)) != 1.0:
                problems.append(f"{prompt.id}: gold answer {prompt.answer!r} does not score 1")
            if self.grade(prompt, spoiled) >= 1.0:
                problems.append(f"{prompt.id}: wrong answer {spoiled!r} scores 1, gold is {prompt.answer!r}")
            if self.grade(prompt, gold.replace("</think>", "")) or self.grade(prompt, ""):
                problems.append(f"{prompt.id}: an unfinished answer scores")
        return problems
