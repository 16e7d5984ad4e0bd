"""SSRL: a model that plays its own search engine learns to answer from what it knows, better where its own information is not trained on."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.agents import AgentBench
from claims.worlds.library import Question, questions
from posttrain.core import rng as draws
from posttrain.core.types import Message
from posttrain.environments.data import data
from posttrain.environments.mapped import each
from posttrain.environments.searching import asked
from posttrain.environments.workshop.facts_world import World, document, world
from posttrain.systems.agents_multiturn.ssrl import ASK, self_search

PASSES, STEPS, PROBLEMS, CARE = 12.0, 40, 60, 0.5
HOW: dict[str, Any] = {"max_tokens": 192}


def shown(known: World, q: Question, seed: int) -> list[Message]:
    """The chain with what the documents say; or (not careful) it stops one fact early."""
    rng = draws.python("remembers", seed, q.text)
    last, text = len(q.relations) - (rng.random() >= CARE), ""
    for name in q.chain[:last]:
        found = document((name, known.facts[name]))[1]
        text += f"<think>{name}</think><search>{name}</search><information>{found}</information>"
    text += f"<think>{q.chain[last]}</think><answer>{q.chain[last]}</answer>"
    return [{"role": "user", "content": ASK.replace("{question}", q.text)}, {"role": "assistant", "content": text}]


def trained(seed: int, plan: str) -> Measured:
    """Taught a small world by heart, in the form; then the registered plan, or nothing more; other questions about the same world."""
    with AgentBench(seed) as bench:
        known, rng = world(seed), draws.python("asked", seed)
        every = [*questions(rng, known, 1, 40), *questions(rng, known, 2, 120)]
        rng.shuffle(every)
        test, train = every[:PROBLEMS], every[PROBLEMS:]
        run = bench.taught([shown(known, q, seed) for q in train], PASSES)
        rows, others = ([q.row(hint=False) for q in some] for some in (train, test))
        if plan:
            run = bench.run("run", method=plan, model=str(run), task=bench.rows("questions", rows), sampling=HOW)
        env = each(data({"train": rows, "test": others}), asked(ASK))
        right = {"right": lambda made: sum(self_search(r.prompt, r.text, weight=0.0) for r in made) / len(made)}
        return bench.looked(run, env, PROBLEMS, right, HOW)


claim(
    Claim(
        id="ssrl",
        title="SSRL",
        paper="arXiv:2508.10874",
        family="agents-multiturn",
        says="RL teaches a model to search its own memory, without an engine, and leaving the information that it wrote out of the loss makes "
        "this better.",
        experiment="pocket-2, taught the 20 documents of an invented world by heart in 12 passes over questions about it, answered in one text of thoughts, "
        "searches and information, half of them one fact early. 40 steps of the registered plan on 8 questions with 5 answers, with the information "
        "outside of the loss and inside. right: exact answers to 60 other questions about the same world.",
        arms={
            "SSRL": partial(trained, plan=f"ssrl(steps={STEPS})"),
            "information trained": partial(trained, plan=f"ssrl(steps={STEPS}, mask=False)"),
            "start": partial(trained, plan=""),
        },
        checks=(
            Check("better than the start", "right", "SSRL", "start", margin=0.05),
            Check("better than with the information in the loss", "right", "SSRL", "information trained"),
        ),
        seeds=tuple(range(200, 212)),
        level="pocket",
        shares=tuple(Shared(what, arms=("SSRL", "information trained")) for what in ("samples", "updates")),
        tried="On seed 100, with one step on a handful of rows and pocket-2 half trained, to see that every arm runs; nothing was tuned, and "
        "the sizes above were not tried on any seed.",
    ),
    __file__,
)
