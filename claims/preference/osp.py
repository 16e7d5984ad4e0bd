"""OSP: learning as surely as a preference was judged is better than taking every preference for certain."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import ASKED, HOW, gold, oracle

ROUNDS, PROMPTS, N, LR = 3, 64, 4, 5e-5
FAULTS: dict[str, float] = {"noise": 0.7, "temperature": 1.0}
MEASURED: dict[str, Any] = {"level": 1, "think": False, "sampling": HOW}


def learned(seed: int, labels: str) -> Measured:
    """The registered plan: three rounds of 64 requests, four answers each, every two compared in both orders."""
    with Bench(seed) as bench:
        plan = f"osp(rounds={ROUNDS}, prompts={PROMPTS}, n={N}, pairing='all', labels={labels!r})"
        run = bench.run("plan", method=plan, reward=oracle(bench, **FAULTS), lr=LR, **ASKED)
        return bench.measured(run, "instructions", 200, gold, **MEASURED)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return bench.measured(None, "instructions", 200, gold, **MEASURED)


claim(
    Claim(
        id="osp",
        title="OSP",
        paper="arXiv:2405.14103",
        family="preference",
        says="Where the judge of the policy's own answers says how sure it is, learning soft preferences improves the policy, and more than "
        "learning the same preferences as if they were certain.",
        experiment="The embedded model; in each of three rounds four answers to 64 small requests, every two compared in both orders by a judge that knows a hidden taste, with noise, "
        "and says a calibrated probability (the embedded model cannot judge itself). The registered plan learns all pairs in one pass, with the "
        "probabilities as they are, rounded to certainty, or all replaced by their mean (labels that are smoothed as much). gold: the taste on 200 held-out requests.",
        arms={
            "soft": partial(learned, labels="soft"),
            "hard": partial(learned, labels="hard"),
            "equally soft": partial(learned, labels="even"),
            "start": start,
        },
        checks=(
            Check("better than the start", "gold", "soft", "start", margin=0.15),
            Check("soft beats hard", "gold", "soft", "hard"),
            Check("and it matters which are sure", "gold", "soft", "equally soft"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("judge_calls", within=0.2, arms=("soft", "hard", "equally soft")),
            Shared("updates", within=0.2, arms=("soft", "hard", "equally soft")),
        ),
        tried="Seed 100: soft 0.95, hard 0.74, the start -0.38. After that came the arm whose labels are all smoothed alike, which no seed has tried, and its check.",
    ),
    __file__,
)
