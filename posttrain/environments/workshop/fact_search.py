"""Questions about an invented world, answered by searching its documents: <search>words</search>.

Level is the number of facts to follow: 1, the trade of somebody; 2, the river of somebody's home town; 3, the product of the home town of
somebody's best friend. Test worlds are others than training worlds. Habits: no search and a guess; a search with the first name alone, or
the relation's; stopping one fact early (at level 1: reading the wrong line).
"""

from __future__ import annotations

import re
from random import Random

from posttrain.core.answers import final_answer
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem, same_text
from posttrain.environments.workshop import facts_world, scene
from posttrain.environments.workshop.facts_world import OF_PEOPLE, OF_TOWNS, WORDS, WORLDS, world
from posttrain.environments.workshop.scene import Expert, Reply, worded

DEFAULT_LEVEL = 2
HABITS = {"early": 5.0, "guess": 1.0, "wrong_words": 1.0}
MOST = 5  # searches
_SEARCH = re.compile(r"<search>(.*?)</search>", re.DOTALL)


def make(rng: Random, level: int) -> Problem:
    """A chain of relations from a person or a town; its facts are looked up one after the other."""
    number = rng.randrange(WORLDS)
    known = world(number)
    while True:
        at = rng.choice(known.people if level > 1 or rng.random() < 0.6 else known.towns)
        chain = [at]
        relations: list[str] = []
        while len(relations) < level and at in known.facts:
            kinds = OF_PEOPLE if at in known.people else OF_TOWNS
            relations.append(rng.choice(list(kinds)))
            at = known.facts[at][relations[-1]]
            chain.append(at)
        if len(relations) == level and len(set(chain)) == len(chain):
            break
    asked = "".join(f"the {WORDS[r]} of " for r in reversed(relations)) + chain[0]
    wording, text = worded(rng, f"What is {asked}? Look it up with <search>words</search>.")
    info = {"world": number, "chain": chain, "relations": relations, "wording": wording}
    return Problem(text, chain[-1], info=info, identity=f"world {number}")


class Scene(scene.Scene):
    """Searches until an answer without one."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(prompt)
        self.count = 0

    def reply(self, text: str) -> Reply:
        said = final_answer(text) or ""
        found = _SEARCH.search(said)
        if found is None:
            return Reply(None, float(bool(said) and same_text(self.prompt, said)))
        self.count += 1
        if self.count > MOST:
            return Reply(None, stop="max_calls")
        query = found[1].strip()
        result = world(self.info["world"]).index({"query": query})
        called = {"name": "search", "arguments": {"query": query}, "repaired": False, "result": result}
        return Reply(result, role="tool", calls=(called,))


def _fact_of_first(prompt: Prompt, found: str) -> str:
    """What the first document found says about the relation asked for first; another line of it where it says nothing."""
    title = found.removeprefix("[1] ").split("\n")[0]
    facts = world(prompt.info["world"]).facts.get(title, {"": "none"})
    return facts.get(prompt.info["relations"][0], next(iter(facts.values())))


def _guessed(prompt: Prompt, rng: Random) -> str:
    """Something of the right kind, without looking."""
    last = prompt.info["relations"][-1]
    words = {"trade": facts_world.TRADES, "product": facts_world.PRODUCTS}.get(last)
    return rng.choice(words) if words else facts_world.invented(rng, 2 if last == "home" else 3)


def expert(prompt: Prompt, habit: str, rng: Random) -> Expert:
    chain, relations = prompt.info["chain"], prompt.info["relations"]
    if habit == "guess":
        yield _guessed(prompt, rng)
        return
    if habit == "wrong_words":
        first, _, last = chain[0].partition(" ")
        found = yield f"<search>{first if last else WORDS[relations[0]]}</search>"
        yield _fact_of_first(prompt, found)
        return
    if habit == "early" and len(relations) == 1:
        yield f"<search>{chain[0]}</search>"
        facts = world(prompt.info["world"]).facts[chain[0]]
        yield rng.choice([v for k, v in facts.items() if k != relations[0] and v != chain[-1]])
        return
    last = len(relations) - (habit == "early")
    for name in chain[:last]:
        yield f"<search>{name}</search>"
    yield chain[last]
