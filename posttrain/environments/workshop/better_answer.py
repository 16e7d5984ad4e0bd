"""Which of two answers is better, A or B, or are they equal? The right number counts most, then the named unit.

Level 1: one number is wrong, or neither. Level 2: units differ too. Level 3: politeness, which does not count, differs as well. The right way
computes the number. Habits: always the first; always the longer.
"""

from __future__ import annotations

from random import Random
from typing import Any

from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.workshop.rubric_score import answered, asked, check
from posttrain.environments.workshop.scene import Expert, near, worded

__all__ = ["DEFAULT_LEVEL", "HABITS", "check", "expert", "make"]

DEFAULT_LEVEL = 2
HABITS = {"first": 2.0, "longer": 1.0}
VERDICTS = ("A", "B", "tie")


def make(rng: Random, level: int) -> Problem:
    """Two answers to a problem; better is the right number, then the named unit. The first is seldom the better one."""
    question, things, sums, value = asked(rng)
    wanted = rng.choices(VERDICTS, (1, 2, 2))[0]
    while True:
        numbers = [value if rng.random() < 0.5 else near(rng, value) for _ in range(2)]
        units = [level == 1 or rng.random() < 0.5 for _ in range(2)]
        manners = [level == 3 and rng.random() < 0.5 for _ in range(2)]
        said = [answered(things, *parts) for parts in zip(numbers, units, manners, strict=True)]
        worth = [2 * (n == value) + u for n, u in zip(numbers, units, strict=True)]
        verdict = "tie" if worth[0] == worth[1] else "A" if worth[0] > worth[1] else "B"
        if said[0] != said[1] and verdict == wanted:
            break
    rule = "The right number counts most, then naming the things."
    wording, text = worded(rng, f"Which is better, A, B or tie? {rule} Question: {question} A: {said[0]} B: {said[1]}")
    info: dict[str, Any] = {
        "sum": sums,
        "value": value,
        "numbers": numbers,
        "units": units,
        "said": said,
        "wording": wording,
    }
    return Problem(text, verdict, info=info, identity=f"{question} {said}")


def expert(prompt: Prompt, habit: str, rng: Random) -> Expert:
    info = prompt.info
    if habit:
        longer = "A" if len(info["said"][0]) > len(info["said"][1]) else "B"
        yield "A" if habit == "first" else longer
        return
    marks = [
        f"{who} number {'yes' if n == info['value'] else 'no'} things {'yes' if u else 'no'}"
        for who, n, u in zip("AB", info["numbers"], info["units"], strict=True)
    ]
    yield f"<think>{info['sum']}={info['value']}; {'; '.join(marks)}</think>{prompt.answer}"
