"""A library for agents that search: documents of invented worlds in one index, questions that follow relations, and how experts search.

Worlds of training questions and of test questions are others; all their documents are in the same index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from claims.machinery.arms import Bench
from posttrain.core import rng as draws
from posttrain.core.types import Message
from posttrain.environments.data import DataEnvironment, data
from posttrain.environments.searching import Document, Index, Pay, Searching, information
from posttrain.environments.workshop.facts_world import OF_PEOPLE, OF_TOWNS, WORDS, World, document, world

TRAIN, TEST = 12, 6  # worlds
HINT = "Look it up with <search>words</search>."  # a question that ends so is asked as it stands, and answered without tags


@dataclass(frozen=True)
class Question:
    """A question, the chain of names that leads to its answer, and the relations between them."""

    text: str
    chain: list[str]
    relations: list[str]

    def row(self, hint: bool = True) -> dict[str, Any]:
        """As a file has it; supporting: the titles of the documents that it takes."""
        asked = f"{self.text} {HINT}" if hint else self.text
        return {"question": asked, "answer": self.chain[-1], "supporting": self.chain[:-1]}


@dataclass
class Library:
    """The documents, the index of them, and questions of both splits."""

    bench: Bench
    hops: int = 2
    train: list[Question] = field(default_factory=list)
    test: list[Question] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = draws.python("library", self.bench.seed)
        known = _apart(rng, TRAIN + TEST)
        self.documents = [document(entry) for one in known for entry in one.facts.items()]
        self.file = self.bench.rows("documents", [{"title": t, "text": x} for t, x in self.documents])
        self.index = Index(self.file)
        self.train = [q for one in known[:TRAIN] for q in questions(rng, one, self.hops, 40)]
        self.test = [q for one in known[TRAIN:] for q in questions(rng, one, self.hops, 40)]
        rng.shuffle(self.train)
        rng.shuffle(self.test)

    def task(self, n: int = 400, hint: bool = True) -> str:
        """Training questions as a file."""
        return self.bench.rows(f"questions-{n}", [q.row(hint) for q in self.train[:n]])

    def held_out(self, hint: bool = True) -> DataEnvironment:
        """Questions about worlds of which no training question asks."""
        return data({"train": [q.row(hint) for q in self.train[:8]], "test": [q.row(hint) for q in self.test]})

    def searching(self, pay: Pay, k: int = 3, turns: int = 5, hint: bool = True) -> Searching:
        """Held-out questions, searched for in the real index."""
        return Searching(self.held_out(hint), self.index.retrieve(k), pay, turns)

    def shown(self, n: int, care: float, k: int = 3, judges: bool = False, idle: float = 0.0) -> list[list[Message]]:
        """Conversations of an expert that follows the chain, or (1 - care) stops one fact early.

        judges: after each search it says whether what was found helps. idle: how often it searches once more for a name that it has.
        """
        out = []
        for q in self.train[-n:]:
            rng = draws.python("searcher", self.bench.seed, q.text)
            out.append(self._conversation(q, rng, rng.random() < care, k, judges, idle))
        return out

    def _conversation(self, q: Question, rng: Random, right: bool, k: int, judges: bool, idle: float) -> list[Message]:
        said: list[Message] = [{"role": "user", "content": q.row()["question"]}]
        last, lead = len(q.relations) - (not right), ""
        for name in [x for one in q.chain[:last] for x in [one] * (1 + (rng.random() < idle))]:
            if judges and rng.random() < 0.3:  # a search that finds nothing of use, and is judged so
                found: Sequence[Document] = self.index.drawn(k, q.text, name)
                said += [_says(f"{lead}<search>{WORDS[q.relations[0]]}</search>"), information(found)]
                lead = "<judge> No </judge>" if right or rng.random() < 0.5 else "<judge> Yes </judge>"
            said += [_says(f"{lead}<search>{name}</search>"), information(self.index.best(name, k))]
            lead = (
                "" if not judges else "<judge> Yes </judge>" if right or rng.random() < 0.5 else "<judge> No </judge>"
            )
        return [*said, _says(lead + q.chain[last])]


def _says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _apart(rng: Random, n: int) -> list[World]:
    """Worlds that share no name."""
    names, out = set[str](), list[World]()
    while len(out) < n:
        one = world(rng.randrange(2000))
        if names.isdisjoint(one.facts):
            names |= set(one.facts)
            out.append(one)
    return out


def questions(rng: Random, known: World, hops: int, n: int) -> list[Question]:
    found: dict[str, Question] = {}
    for _ in range(20 * n):
        chain, relations = [rng.choice(known.people)], list[str]()
        while len(relations) < hops and chain[-1] in known.facts:
            kinds = OF_PEOPLE if chain[-1] in known.people else OF_TOWNS
            relations.append(rng.choice(list(kinds)))
            chain.append(known.facts[chain[-1]][relations[-1]])
        if len(relations) == hops and len(set(chain)) == len(chain) and len(found) < n:
            text = "What is " + "".join(f"the {WORDS[r]} of " for r in reversed(relations)) + f"{chain[0]}?"
            found.setdefault(text, Question(text, chain, relations))
    return list(found.values())
