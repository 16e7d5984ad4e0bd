"""ZeroSearch: documents that grow worse during training teach to search as well as real ones, and better than ones that grow better."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.agents import AgentBench, told
from claims.worlds.library import Library
from posttrain.environments.searching import STOP
from posttrain.systems.agents_multiturn.zerosearch import f1_of_answer

SHOWN, STEPS, PROBLEMS, CARE = 96, 40, 200, 0.4
HOW: dict[str, Any] = {"max_tokens": 64, "stop": STOP}


def trained(seed: int, noise: tuple[float, float] | None) -> Measured:
    """Shown how to search; then the registered plan with noise from the first share to the second, or nothing more."""
    with AgentBench(seed) as bench:
        library = Library(bench)
        run = bench.taught(library.shown(SHOWN, CARE))
        if noise is not None:
            plan = f"zerosearch(steps={STEPS}, documents={library.file!r}, noise={noise}, turns=4, k=3)"
            run = bench.run("run", method=plan, model=str(run), task=library.task(), sampling=HOW)
        return bench.looked(run, library.searching(f1_of_answer, 3, 4), PROBLEMS, {"searches": told("searches")}, HOW)


claim(
    Claim(
        id="zerosearch",
        title="ZeroSearch",
        paper="arXiv:2505.04588",
        family="agents-multiturn",
        says="A search agent that learns while more and more of its searches are answered with noise is as good with a real engine as one that learned with "
        "the real engine, and better than one whose documents grew better.",
        experiment="pocket-2 answers questions of two facts about invented worlds by searching an index of 360 documents, shown 96 conversations of which most "
        "stop one fact early. 40 steps of the registered plan on 8 questions with 5 episodes, noise in 0 to half of the searches, none, or half to 0. "
        "worth: F1 of the answer to 200 questions about other worlds, with the index as it is. Noise are documents at random, not a model's.",
        arms={
            "rising noise": partial(trained, noise=(0.0, 0.5)),
            "real engine": partial(trained, noise=(0.0, 0.0)),
            "falling noise": partial(trained, noise=(0.5, 0.0)),
            "start": partial(trained, noise=None),
        },
        checks=(
            Check("better than the start", "worth", "rising noise", "start", margin=0.05),
            Check("as good as with the real engine", "worth", "rising noise", "real engine", margin=-0.05),
            Check("better than with falling noise", "worth", "rising noise", "falling noise"),
        ),
        seeds=tuple(range(200, 212)),
        level="pocket",
        shares=tuple(
            Shared(what, arms=("rising noise", "real engine", "falling noise")) for what in ("samples", "updates")
        ),
        tried="On seed 100, with one step on a handful of rows and pocket-2 half trained, to see that every arm runs; nothing was tuned, and "
        "the sizes above were not tried on any seed.",
    ),
    __file__,
)
