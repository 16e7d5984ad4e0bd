"""ArCHer: a critic of turns that learns from all episodes so far makes more of them than on-policy REINFORCE."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.agents import AgentBench

TASK, PROBLEMS = "number_guess(level=1)", 300
ITERATIONS, WARM, EPISODES, CRITIC, ACTOR, RATE = 10, 10, 64, 30, 3, 0.1
GAMES = EPISODES * (ITERATIONS + WARM)
UPDATES = ITERATIONS * ACTOR


def trained(seed: int, method: str, **settings: Any) -> Measured:
    """The registered plan or method on guessing a number, or the start; held-out games."""
    with AgentBench(seed) as bench:
        run = bench.run("run", method=method, task=TASK, **settings) if method else None
        return bench.looked(run, TASK, PROBLEMS)


def archer() -> str:
    sizes = f"iterations={ITERATIONS}, warmup={WARM}, episodes={EPISODES}, critic={CRITIC}, actor={ACTOR}"
    return f"archer({sizes}, rate={RATE})"


claim(
    Claim(
        id="archer",
        title="ArCHer",
        paper="arXiv:2402.19446",
        family="agents-multiturn",
        says="A critic of whole turns, learned off policy by TD from every episode so far, teaches a token-level policy with far fewer episodes than "
        "on-policy methods need.",
        experiment="pocket-2 guesses a number by halving. The registered plan: 20 times 64 games, of which the first 10 times teach the critic alone, and 30 "
        "updates of the policy at a tenth of the critic's rate; REINFORCE on as many games (43 in each of 30 updates) and as many updates of the policy. accuracy: the share of 300 "
        "held-out games that were won. The critic's own updates come on top, as in the paper.",
        arms={
            "ArCHer": partial(trained, method=archer(), prompts=16),
            "REINFORCE": partial(
                trained, method="reinforce", prompts=-(-GAMES // UPDATES), steps=UPDATES, num_generations=1
            ),
            "start": partial(trained, method=""),
        },
        checks=(
            Check("better than the start", "accuracy", "ArCHer", "start", margin=0.05),
            Check("better than REINFORCE on as many games", "accuracy", "ArCHer", "REINFORCE", margin=0.02),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("updates", arms=("ArCHer", "REINFORCE")),),
        tried="On seed 100 with 15 times 32 games and both networks at the run's rate: 0.25 (ArCHer), 0.425 (start). On seed 101 the games that are played fell from 0.53 to 0.06 won "
        "over the ten times that the policy learns: a critic of so few games at so large a rate leads it astray, and nothing could be shown of critics. Hence more games, a longer warm-up and the "
        "policy's own rate, for which the authors take half of the critic's, and a twentieth for twenty questions. As it stands, seed 101: 0.49 (ArCHer), and 0.5 of the last games that it played; REINFORCE 0.84, which has learned at the whole rate.",
    ),
    __file__,
)
