"""ArCHer: a critic of turns that learns from all episodes so far makes more of them than on-policy REINFORCE."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.agents import AgentBench

TASK, PROBLEMS = "number_guess(level=1)", 300
ITERATIONS, WARM, EPISODES, CRITIC, ACTOR = 10, 5, 32, 30, 3


def trained(seed: int, method: str, **settings: Any) -> Measured:
    """The registered plan or method on guessing a number, or the start; held-out games."""
    with AgentBench(seed) as bench:
        run = bench.run("run", method=method, task=TASK, **settings) if method else None
        return bench.looked(run, TASK, PROBLEMS)


def archer() -> str:
    return f"archer(iterations={ITERATIONS}, warmup={WARM}, episodes={EPISODES}, critic={CRITIC}, actor={ACTOR})"


claim(
    Claim(
        id="archer",
        title="ArCHer",
        paper="arXiv:2402.19446",
        family="agents-multiturn",
        says="A critic of whole turns, learned off policy by TD from every episode so far, teaches a token-level policy with far fewer episodes than "
        "on-policy methods need.",
        experiment="pocket-2 guesses a number by halving. The registered plan: 15 times 32 games, of which the first 5 times teach the critic alone, and 30 "
        "updates of the policy; REINFORCE on as many games (16 in each of 30 updates) and as many updates of the policy. accuracy: the share of 300 "
        "held-out games that were won. The critic's own updates come on top, as in the paper.",
        arms={
            "ArCHer": partial(trained, method=archer(), prompts=16),
            "REINFORCE": partial(trained, method="reinforce", prompts=16, steps=ITERATIONS * ACTOR, num_generations=1),
            "start": partial(trained, method=""),
        },
        checks=(
            Check("better than the start", "accuracy", "ArCHer", "start", margin=0.05),
            Check("better than REINFORCE on as many games", "accuracy", "ArCHer", "REINFORCE", margin=0.02),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("updates", arms=("ArCHer", "REINFORCE")),),
        tried="On seed 100, with one step on a handful of rows and pocket-2 half trained, to see that every arm runs; nothing was tuned, and "
        "the sizes above were not tried on any seed.",
    ),
    __file__,
)
