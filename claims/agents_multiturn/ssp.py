"""SSP: a model that writes questions with a search engine, checks them and learns to answer them becomes a better searcher without any given question."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.agents import AgentBench, told
from claims.worlds.library import Library, Question
from posttrain.core import rng as draws
from posttrain.core.types import Message
from posttrain.environments.searching import ASK, STOP, Document, information
from posttrain.systems.agents_multiturn.ssp import CHECK, NOISE, PROPOSE
from posttrain.systems.agents_multiturn.zerosearch import f1_of_answer

SHOWN, STEPS, PROBLEMS, CARE, TURNS = 160, 30, 200, 0.45, 3
HOW: dict[str, Any] = {"max_tokens": 96, "stop": f"{STOP}|</question>"}


def shown(library: Library, q: Question, seed: int) -> list[list[Message]]:
    """The three things that the plan asks for: a question is written, answered from documents, and answered by searching.

    Not careful: the question is about another relation, and the answer another line of the document.
    """
    rng, (name, answer) = draws.python("plays", seed, q.text), q.chain
    found, read = library.index.best(answer, 3), library.index.best(name, 3)
    wrong = rng.choice([d.title for d in read])
    said = [answer if rng.random() < CARE else wrong for _ in range(2)]
    asked = q.text if rng.random() < CARE else rng.choice(library.train).text
    documents: list[Document] = [*found, *library.index.drawn(NOISE, seed, q.text)]
    rng.shuffle(documents)
    mixed = str(information(dict.fromkeys(documents))["content"])
    check = CHECK.replace("{question}", q.text).replace("{documents}", mixed)
    propose = [_user(PROPOSE.replace("{answer}", answer)), _says(f"<search>{answer}</search>"), information(found)]
    solve = [_user(ASK.replace("{question}", q.text)), _says(f"<search>{name}</search>"), information(read)]
    return [
        [*propose, _says(f"<question>{asked}</question>")],
        [_user(check), _says(f"<answer>{said[0]}</answer>")],
        [*solve, _says(f"<answer>{said[1]}</answer>")],
    ]


def _says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def trained(seed: int, plan: str) -> Measured:
    """Shown all three; then the registered plan, of whose task only the answers are used, or nothing more."""
    with AgentBench(seed) as bench:
        library = Library(bench, hops=1)
        run = bench.taught([said for q in library.train[-SHOWN:] for said in shown(library, q, seed)])
        if plan:
            method = plan.replace("FILE", repr(library.file))
            run = bench.run("run", method=method, model=str(run), task=library.task(200, hint=False), sampling=HOW)
        env = library.searching(f1_of_answer, 3, TURNS, hint=False)
        return bench.looked(run, env, PROBLEMS, {"searches": told("searches")}, HOW)


claim(
    Claim(
        id="ssp",
        title="SSP",
        paper="arXiv:2510.18821",
        family="agents-multiturn",
        says="Self-play in which one model writes questions by searching and answers them by searching improves it as a searcher without given "
        "questions, and checking that a question can be answered from what was read is needed for it.",
        experiment="pocket-2 with an index of 360 documents about invented worlds, shown 160 facts as a question to write, to check and to answer, most of "
        "them carelessly. 30 steps of the registered plan on 8 answers, with the check of questions and without. worth: F1 of answers to 200 questions about "
        "worlds of which no training answer is.",
        arms={
            "SSP": partial(trained, plan=f"ssp(steps={STEPS}, documents=FILE, turns={TURNS})"),
            "without the check": partial(
                trained, plan=f"ssp(steps={STEPS}, documents=FILE, turns={TURNS}, gate=False)"
            ),
            "start": partial(trained, plan=""),
        },
        checks=(
            Check("better than the start", "worth", "SSP", "start", margin=0.05),
            Check("better than without the check", "worth", "SSP", "without the check"),
        ),
        seeds=tuple(range(200, 212)),
        level="pocket",
        shares=(Shared("updates", arms=("SSP", "without the check")),),
        tried="On seed 100, with one step on a handful of rows and pocket-2 half trained, to see that every arm runs; nothing was tuned, and "
        "the sizes above were not tried on any seed.",
    ),
    __file__,
)
