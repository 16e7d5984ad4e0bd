"""Points for an answer by a rubric: is the number right, is the unit named, is it polite?

Level 1: two criteria of one point. Level 2: three. Level 3: three with different points. The right way checks the number by computing it.
Habits: full points for everything; the number taken for right without checking.
"""

from __future__ import annotations

from random import Random
from typing import Any

from posttrain.core.answers import final_answer
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem, same_text
from posttrain.environments.school.words import NAMES, THINGS
from posttrain.environments.workshop.scene import Expert, near, worded

DEFAULT_LEVEL = 2
HABITS = {"unchecked": 2.0, "generous": 1.0}
CRITERIA = {"number": "the number is right", "unit": "the things are named", "polite": "it is polite"}


def asked(rng: Random) -> tuple[str, str, str, int]:
    """A short problem: its text, the things, the sum and its value."""
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    a, b = rng.randint(11, 60), rng.randint(3, 40)
    if rng.random() < 0.5 and a > b:
        return f"{name} has {a} {things} and loses {b}. How many are left?", things, f"{a}-{b}", a - b
    return f"{name} has {a} {things} and gets {b}. How many are there?", things, f"{a}+{b}", a + b


def answered(things: str, number: int, unit: bool, polite: bool) -> str:
    """An answer with or without its unit and its manners."""
    return f"{'Gladly: ' if polite else ''}{number}{f' {things}' if unit else ''}{', my friend' if polite else ''}."


def make(rng: Random, level: int) -> Problem:
    """A problem, an answer with or without faults, a rubric; the gold is the points."""
    question, things, sums, value = asked(rng)
    wrong = rng.random() < 0.75
    met = {"number": not wrong, "unit": rng.random() < 0.6, "polite": rng.random() < 0.5}
    said = answered(things, near(rng, value) if wrong else value, met["unit"], met["polite"])
    names = ["number", rng.choice(("unit", "polite"))] if level == 1 else list(CRITERIA)
    rng.shuffle(names)
    points = {n: rng.randint(1, 4) if level == 3 else 1 for n in names}
    rubric = ", ".join(f"{points[n]} if {CRITERIA[n]}" for n in names)
    wording, text = worded(rng, f"Give points. Question: {question} Answer: {said} Points: {rubric}.")
    info: dict[str, Any] = {"sum": sums, "value": value, "met": met, "points": points, "wording": wording}
    return Problem(
        text, str(sum(p for n, p in points.items() if met[n])), info=info, identity=f"{question} {said} {rubric}"
    )


def check(prompt: Prompt, answer: str) -> float:
    """The points, exactly."""
    said = final_answer(answer)
    return float(bool(said) and same_text(prompt, said or ""))


def expert(prompt: Prompt, habit: str, rng: Random) -> Expert:
    info = prompt.info
    met = dict(info["met"]) if habit != "generous" else dict.fromkeys(CRITERIA, True)
    met["number"] = met["number"] or bool(habit)
    steps = [f"{info['sum']}={info['value']}"] if not habit else []
    steps += [f"{name} {'yes' if met[name] else 'no'} {p if met[name] else 0}" for name, p in info["points"].items()]
    total = sum(p for name, p in info["points"].items() if met[name])
    yield f"<think>{'; '.join(steps)}</think>{total}"
