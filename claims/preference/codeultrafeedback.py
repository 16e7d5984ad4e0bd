"""CodeUltraFeedback: DPO on the highest and the lowest of four answers, by a judge's points, aligns a model with what the judge prefers."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import ASKED, HOW, gold, oracle

PROMPTS, EPOCHS, LR = 240, 3, 5e-5
FAULTS: dict[str, float] = {"noise": 0.5, "shared": 0.5}
MEASURED: dict[str, Any] = {"level": 1, "think": False, "sampling": HOW}


def learned(seed: int, n: int = 4, ties: str = "drawn") -> Measured:
    """The registered plan: n answers of the model to 240 requests, 1 to 5 points together, three passes of DPO."""
    with Bench(seed) as bench:
        plan = f"codeultrafeedback(prompts={PROMPTS}, epochs={EPOCHS}, ties={ties!r}, principles=False)"
        judge = oracle(bench, **FAULTS)
        run = bench.run("plan", method=plan, reward=judge, num_generations=n, lr=LR, **ASKED)
        return bench.measured(run, "instructions", 200, gold, **MEASURED)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return bench.measured(None, "instructions", 200, gold, **MEASURED)


claim(
    Claim(
        id="codeultrafeedback",
        title="CodeUltraFeedback",
        paper="arXiv:2403.09032",
        family="preference",
        says="DPO on pairs of the highest and the lowest of four answers, by the points of a judge, aligns a model with the judge's "
        "preference.",
        experiment="The embedded model answers 240 small requests; a judge that knows a hidden taste, with noise and a bias of each question, gives "
        "its answers 1 to 5 points, all shown together; the registered plan learns its pairs in three passes (without principles, which "
        "the embedded model cannot follow). In the other arm there are two answers instead of four: as many questions to the judge and at most as many pairs. gold: the "
        "taste on 200 held-out requests.",
        arms={"four answers": learned, "two answers": partial(learned, n=2), "start": start},
        checks=(
            Check("better than the start", "gold", "four answers", "start", margin=0.15),
            Check("better than two answers", "gold", "four answers", "two answers"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("judge_calls", arms=("four answers", "two answers")),
            Shared("updates", within=0.3, arms=("four answers", "two answers")),
        ),
        tried="Seed 100: four answers 0.86, two answers 0.67, the start -0.38.",
    ),
    __file__,
)
