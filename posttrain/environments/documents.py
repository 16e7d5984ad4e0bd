"""Questions about a document in parts: facts about people, and an answer found by following relations from one to the next.

Everything is drawn anew for each document, so nothing but the document tells the answer. `documents(parts=8, facts=4, hops=2)`:
the facts that lead to the answer lie anywhere in it, the others are about other people or other things.
"""

from __future__ import annotations

from functools import partial
from random import Random

from posttrain.core.errors import UserError
from posttrain.environments.base import Problem, Task
from posttrain.environments.school import THINK
from posttrain.environments.school.words import ANIMALS, COLOURS, FOODS, NAMES

RELATIONS = ("brother", "teacher", "neighbour", "doctor", "best friend", "boss", "cousin", "coach")
THINGS = {
    "favourite food": ("{n} likes {v} best.", FOODS), "favourite colour": ("The colour {n} likes is {v}.", COLOURS),
    "pet": ("{n} keeps this animal: {v}.", ANIMALS),
}  # fmt: skip
SUFFIX = " Answer with the words of the text alone."


def documents(parts: int = 8, facts: int = 4, hops: int = 1, think: bool | None = False, seed: int = 0) -> Task:
    """Documents of so many parts with so many facts each; hops: relations to follow before the thing asked for (0: none)."""
    if min(parts, facts) < 1 or hops < 0:
        raise UserError(
            f"got parts={parts}, facts={facts}, hops={hops}; parts and facts are at least 1, hops at least 0"
        )
    most = len(NAMES) * (len(RELATIONS) + len(THINGS))
    if not hops < parts * facts <= most:
        raise UserError(
            f"{parts} parts of {facts} facts are {parts * facts}; {hops} hops need {hops + 1}, and there are {most} different ones"
        )
    if hops > len(NAMES) // 2:
        raise UserError(f"{hops} hops; there are names for {len(NAMES) // 2}")
    suffix = SUFFIX + (THINK if think else "")
    make = partial(document, shape=(parts, facts, hops), suffix=suffix)
    name = f"documents-{parts}-{facts}-{hops}-{'think' if think else 'direct'}"
    return Task(name, make, seed=seed, suffix=suffix, info={"task": "documents", "level": hops, "think": bool(think)})


def document(rng: Random, shape: tuple[int, int, int], suffix: str) -> Problem:
    """One document and its question: the facts on the way to the answer, then others that do not touch it."""
    parts, facts, hops = shape
    people = rng.sample(NAMES, len(NAMES))
    chain, others = people[: hops + 1], people[hops + 1 :]
    asked = rng.choice(list(THINGS))
    relations = [rng.choice(RELATIONS) for _ in range(hops)]
    way = [f"The {r} of {a} is {b}." for a, r, b in zip(chain, relations, chain[1:], strict=False)]
    answer = rng.choice(THINGS[asked][1])
    way.append(THINGS[asked][0].format(n=chain[-1], v=answer))
    taken = set(zip(chain, [*relations, asked], strict=False))
    told = list(way)
    while len(told) < parts * facts:
        name, what = rng.choice(people), rng.choice((*RELATIONS, *THINGS))
        if (name, what) in taken:  # a person has one brother here, and likes one food best
            continue
        taken.add((name, what))
        if what in THINGS:
            told.append(THINGS[what][0].format(n=name, v=rng.choice(THINGS[what][1])))
        else:
            told.append(f"The {what} of {name} is {rng.choice([p for p in others if p != name])}.")
    rng.shuffle(told)
    who = chain[0] + "".join(f"'s {r}" for r in relations)
    ask = f"What is {who}'s {asked}?"
    cut = [" ".join(told[at : at + facts]) for at in range(0, len(told), facts)]
    question = " ".join((*told, ask))
    return Problem(
        question,
        answer,
        " ".join(way),
        {"parts": cut, "ask": ask + suffix},
        identity=f"{ask} {answer} {' '.join(sorted(told))}",
    )
