"""ReSeek: a search agent that judges what it found, drops what does not help and is paid for judging well answers better than one paid for answers."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.agents import AgentBench, share, told
from claims.worlds.library import Library
from posttrain.environments.searching import STOP
from posttrain.systems.agents_multiturn.reseek import Seeking, judged_search

SHOWN, STEPS, PROBLEMS, CARE, TURNS = 128, 40, 200, 0.45, 4
HOW: dict[str, Any] = {"max_tokens": 64, "stop": STOP}


def judged_well(made: Any) -> float:
    """The share of judgements that say what the documents were."""
    pairs: list[bool] = [verdict == useful for r in made for verdict, useful in r.info["judged"]]
    return sum(pairs) / max(len(pairs), 1)


def trained(seed: int, plan: str) -> Measured:
    """Shown how to search and to judge; then a registered plan, or nothing more; held-out questions by episodes with judgements."""
    with AgentBench(seed) as bench:
        library = Library(bench)
        run = bench.taught(library.shown(SHOWN, CARE, judges=True))
        if plan:
            method = plan.replace("FILE", repr(library.file))
            run = bench.run("run", method=method, model=str(run), task=library.task(), sampling=HOW)
        env = Seeking(library.held_out(), library.index.retrieve(3), lambda prompt, trail: 0.0, TURNS)
        figures = {"right": lambda made: share(made, lambda r: r.total > 0.5), "judged_well": judged_well}
        return bench.looked(run, env, PROBLEMS, figures | {"searches": told("searches")}, HOW, judged_search)


claim(
    Claim(
        id="reseek",
        title="ReSeek",
        paper="arXiv:2510.00568",
        family="agents-multiturn",
        says="Judging each search, dropping what does not help, and a reward for right judgements besides the one for the answer make a search agent better "
        "than the reward for the answer alone.",
        experiment="pocket-2 answers questions of two facts by searching an index of 360 documents, shown 128 conversations with judgements, most of them "
        "careless. 40 steps of the registered plan on 8 questions with 5 episodes, or of GRPO on the answer with the same index (the plan zerosearch "
        "without noise). right: exact answers to 200 questions about other worlds, in episodes that drop what is judged No; judged_well: judgements "
        "that say what the documents were.",
        arms={
            "ReSeek": partial(trained, plan=f"reseek(steps={STEPS}, documents=FILE, turns={TURNS}, k=3)"),
            "answer alone": partial(
                trained, plan=f"zerosearch(steps={STEPS}, documents=FILE, noise=(0.0, 0.0), turns={TURNS}, k=3)"
            ),
            "start": partial(trained, plan=""),
        },
        checks=(
            Check("more answers right than when the answer alone is paid", "right", "ReSeek", "answer alone"),
            Check("better judgements", "judged_well", "ReSeek", "answer alone", margin=0.05),
            Check("better than the start", "right", "ReSeek", "start", margin=0.05),
        ),
        seeds=tuple(range(200, 212)),
        level="pocket",
        shares=tuple(Shared(what, arms=("ReSeek", "answer alone")) for what in ("samples", "updates")),
        tried="On seed 100, with one step on a handful of rows and pocket-2 half trained, to see that every arm runs; nothing was tuned, and "
        "the sizes above were not tried on any seed.",
    ),
    __file__,
)
