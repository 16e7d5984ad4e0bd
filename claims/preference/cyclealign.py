"""CycleAlign: examples on which judge and student agree make the judge better, and with it the student."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import ASKED, HOW, gold, oracle

ROUNDS, PROMPTS, N = 6, 40, 4
RATE: dict[str, Any] = {
    "lr": 2e-4,
    "warmup": 0,
    "schedule": "constant",
}  # a round has 5 updates, which a warm-up would use up
FAULTS: dict[str, float] = {"noise": 2.0, "taught": 0.9}
MEASURED: dict[str, Any] = {"level": 1, "think": False, "sampling": HOW}


def learned(seed: int, update: str) -> Measured:
    """The registered plan: six rounds of 40 requests with four answers, ranked with one example before the judge's eyes."""
    with Bench(seed) as bench:
        plan = f"cyclealign(rounds={ROUNDS}, prompts={PROMPTS}, n={N}, update={update!r})"
        run = bench.run("plan", method=plan, reward=oracle(bench, **FAULTS), **RATE, **ASKED)
        return bench.measured(run, "instructions", 200, gold, **MEASURED)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return bench.measured(None, "instructions", 200, gold, **MEASURED)


claim(
    Claim(
        id="cyclealign",
        title="CycleAlign",
        paper="arXiv:2310.16271",
        family="preference",
        says="A judge that is shown the rankings on which it and the student agreed ranks better, and the student that learns its rankings "
        "becomes better than one of a judge without such examples, or with the judge's own rankings as examples.",
        experiment="The embedded model; six rounds of 40 small requests with four answers each, ranked by a judge that knows a hidden taste, with noise. Up to nine tenths of the noise "
        "goes as the example it is shown is well ordered by the taste. The registered plan with examples from agreement, from the judge's "
        "rankings as they are, and without any: as many questions, lists and updates. gold: the taste on 200 held-out requests.",
        arms={
            "agreement": partial(learned, update="agreement"),
            "the judge's own": partial(learned, update="judge"),
            "none": partial(learned, update="none"),
            "start": start,
        },
        checks=(
            Check("better than the start", "gold", "agreement", "start", margin=0.15),
            Check("examples help", "gold", "agreement", "none"),
            Check("agreement beats the judge's own", "gold", "agreement", "the judge's own"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("judge_calls", arms=("agreement", "the judge's own", "none")),
            Shared("updates", within=0.1, arms=("agreement", "the judge's own", "none")),
        ),
        tried="Seed 100, with a rate of 5e-5 that rises over the 5 updates of each round: agreement -0.19, the judge's own -0.22. With this rate: 0.42 and 0.32; the arm without examples was not finished.",
    ),
    __file__,
)
