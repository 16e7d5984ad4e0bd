"""Invented worlds: people with a home town, a trade and a best friend, towns with a river, a product and a mayor.

A world is a function of its number, and its documents are indexed for real (SQLite FTS5). First names are shared, so a search for one
finds other people too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random

from posttrain.core import rng as draws
from posttrain.environments.school.words import listed
from posttrain.tools.search import search_over
from posttrain.tools.tool import Tool

WORLDS = 2000
TRADES = listed("baker miller smith tailor painter farmer sailor potter carver weaver hunter singer fisher teacher")
PRODUCTS = listed("cheese honey salt glass wool bread apples silver paper candles ropes bells soap wine")
OF_PEOPLE = {"home": "home town", "trade": "trade", "friend": "best friend"}
OF_TOWNS = {"river": "river", "product": "product", "mayor": "mayor"}
WORDS = OF_PEOPLE | OF_TOWNS
_START = listed("ba be bo da de do fa fe ka ke ko la le lo ma me mo na ne ra re ro sa se so ta te to va ve")
_END = listed("bin dal den gor kam lan len mar mer nas nel nor ral ran rik san sol tan ten tor van ven vik")


def invented(rng: Random, parts: int) -> str:
    """A name that nobody has."""
    return "".join([*(rng.choice(_START) for _ in range(parts - 1)), rng.choice(_END)]).capitalize()


def _distinct(rng: Random, parts: int, n: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < n:
        found[invented(rng, parts)] = None
    return list(found)


@dataclass(frozen=True)
class World:
    """facts[name][relation] = value."""

    facts: dict[str, dict[str, str]]
    people: list[str]
    towns: list[str]
    index: Tool


@lru_cache(maxsize=WORLDS)
def world(number: int) -> World:
    """World `number`, with the index of its documents."""
    rng = draws.python("facts world", number)
    towns, rivers = _distinct(rng, 2, 6), _distinct(rng, 3, 6)
    first, last = _distinct(rng, 2, 6), _distinct(rng, 3, 14)
    people = [f"{rng.choice(first)} {x}" for x in last]
    facts: dict[str, dict[str, str]] = {}
    for i, name in enumerate(people):
        friend = people[(i + rng.randint(1, len(people) - 1)) % len(people)]
        facts[name] = {"home": rng.choice(towns), "trade": rng.choice(TRADES), "friend": friend}
    products = rng.sample(PRODUCTS, len(towns))
    for name, river, product in zip(towns, rivers, products, strict=True):
        facts[name] = {"river": river, "product": product, "mayor": rng.choice(people)}
    return World(facts, people, towns, search_over(map(document, facts.items()), k=2))


def document(entry: tuple[str, dict[str, str]]) -> tuple[str, str]:
    """Title and text of what is known about a person or a town."""
    name, facts = entry
    return name, " ".join([f"{name}.", *(f"{WORDS[k].capitalize()}: {v}." for k, v in facts.items())])
