"""Questions that need tools: a calculator, a price list, a table of distances.

Level 1 takes one call, level 2 two of which the second uses the first's result, level 3 three. Habits: no call and a guess; a call that
is not JSON; an argument of the wrong name; after an error these give up.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.school.words import ITEMS
from posttrain.environments.workshop.hermes import CLOSE, OPEN, ToolScene, call
from posttrain.environments.workshop.scene import Expert, near, worded
from posttrain.tools.calculator import calculate
from posttrain.tools.tool import Tool, ToolError, tool

DEFAULT_LEVEL = 1
HABITS = {"guess": 6.0, "no_json": 1.0, "wrong_key": 1.0}
TOWNS = [
    "Arle",
    "Bost",
    "Calm",
    "Dorn",
    "Elfe",
    "Finn",
    "Gort",
    "Hame",
    "Isk",
    "Jarl",
    "Kiel",
    "Lund",
    "Mose",
    "Nord",
    "Oust",
    "Peel",
]
_OTHER = {"calculator": ("expression", "expr"), "find_price": ("item", "name"), "find_distance": ("start", "from")}


def listed(info: dict[str, Any]) -> list[Tool]:
    """The tools of a problem, over its own tables."""
    prices, distances = info["prices"], info["distances"]

    def calculator(expression: str) -> str:
        """Compute an expression."""
        return calculate(expression)

    def find_price(item: str) -> str:
        """Look up the price of an item."""
        if item not in prices:
            raise ToolError(f"no price of {item[:30]!r}; there are: {', '.join(prices)}")
        return str(prices[item])

    def find_distance(start: str, end: str) -> str:
        """Look up the kilometres between two towns."""
        found = distances.get(f"{start}-{end}", distances.get(f"{end}-{start}"))
        if found is None:
            raise ToolError(f"no way from {start[:30]!r} to {end[:30]!r}; there are: {', '.join(distances)}")
        return str(found)

    return [tool(f, seconds=2.0) for f in (calculator, find_price, find_distance)]


@cache
def _schemas() -> tuple[dict[str, Any], ...]:
    return tuple(t.schema for t in listed({"prices": {}, "distances": {}}))


def make(rng: Random, level: int) -> Problem:
    """Level 1: What is 4821*37? Level 2: What do 37 lamps cost? Level 3: What do 12 lamps and 7 bells cost?"""
    a, b, c = rng.sample(ITEMS, 3)
    start, end, over = rng.sample(TOWNS, 3)
    prices = {item: rng.randint(11, 99) for item in (a, b, c)}
    distances = {f"{start}-{end}": rng.randint(12, 480), f"{end}-{over}": rng.randint(12, 480)}
    info: dict[str, Any] = {"prices": prices, "distances": distances, "tools": list(_schemas())}
    question, steps, answer = _asked(rng, level, (a, b), (start, end, over), info)
    wording, text = worded(rng, question)
    info |= {"wording": wording, "gold_calls": steps}
    return Problem(text, str(answer), info=info, identity=f"{question} {prices} {distances}")


def _asked(
    rng: Random, level: int, items: tuple[str, str], towns: tuple[str, str, str], info: dict[str, Any]
) -> tuple[str, list[dict[str, Any]], int]:
    """A question, the calls that answer it, and the answer."""
    (a, b), (start, end, over), prices = items, towns, info["prices"]
    n, m = rng.randint(12, 98), rng.randint(12, 98)
    km, further = info["distances"].values()
    of_a, of_b = ({"name": "find_price", "arguments": {"item": x}} for x in (a, b))
    first = {"name": "find_distance", "arguments": {"start": start, "end": end}}
    second = {"name": "find_distance", "arguments": {"start": end, "end": over}}

    def computed(text: str) -> dict[str, Any]:
        return {"name": "calculator", "arguments": {"expression": text}}

    if level == 1:
        x, y = rng.randint(112, 9899), rng.randint(12, 98)
        return rng.choice((
            (f"What is {x}*{y}?", [computed(f"{x}*{y}")], x * y),
            (f"What does one {a} cost?", [of_a], prices[a]),
            (f"How far is it from {start} to {end}?", [first], km),
        ))  # fmt: skip
    if level == 2:
        return rng.choice((
            (f"What do {n} of the {a} cost?", [of_a, computed(f"{n}*{prices[a]}")], n * prices[a]),
            (f"How far is it to go {n} times from {start} to {end}?", [first, computed(f"{n}*{km}")], n * km),
        ))  # fmt: skip
    return rng.choice((
        (f"What do {n} of the {a} and {m} of the {b} cost?",
         [of_a, of_b, computed(f"{n}*{prices[a]}+{m}*{prices[b]}")], n * prices[a] + m * prices[b]),
        (f"How far is it {n} times from {start} over {end} to {over}?",
         [first, second, computed(f"{n}*({km}+{further})")], n * (km + further)),
    ))  # fmt: skip


class Scene(ToolScene):
    """The tools over the problem's tables."""

    def tools(self) -> list[Tool]:
        return listed(self.info)


def _spoiled(step: dict[str, Any], habit: str) -> str:
    """The call as the habit writes it."""
    name, arguments = step["name"], step["arguments"]
    if habit == "no_json":
        return f"{OPEN}{name}({', '.join(map(str, arguments.values()))}){CLOSE}"
    right, wrong = _OTHER[name]
    return call(name, **{wrong if k == right else k: v for k, v in arguments.items()})


def expert(prompt: Prompt, habit: str, rng: Random) -> Expert:
    steps, answer = prompt.info["gold_calls"], int(prompt.answer)
    if habit:
        if habit != "guess":
            yield _spoiled(steps[0], habit)
        yield str(near(rng, answer))
        return
    if rng.random() < 0.08:  # a fault that is mended
        yield _spoiled(steps[0], rng.choice(("no_json", "wrong_key")))
    for step in steps:
        yield call(step["name"], **step["arguments"])
    yield str(answer)
