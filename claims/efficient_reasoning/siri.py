"""SIRI: a length limit that falls and rises in cycles ends as accurate as a wide one, with fewer tokens."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.long_thoughts import TASK, by_level, rambling
from posttrain.core.method import Method, find_method
from posttrain.systems.efficient_reasoning.siri import length_cycles

WIDE, STEPS, PROMPTS, PROBLEMS = 64, 18, 8, 400
HOW = {"max_tokens": WIDE}
SIRI = find_method("siri")
FIXED = SIRI.but(rollout=length_cycles.but(cycle=(1.0, 0)))
RL = ("wide", "SIRI")


def trained(seed: int, method: Method | None) -> Measured:
    """18 steps of 8 answers to each of 8 questions, 4 updates each, from the rambling start; then two sampled answers to each of 400
    held-out questions under the wide limit."""
    with Bench(seed) as bench:
        run = rambling(bench)
        if method is not None:
            run = bench.run(
                "rl", method=method, model=str(run), task=TASK, think=True, steps=STEPS, prompts=PROMPTS, sampling=HOW
            )
        return bench.measured(run, TASK, PROBLEMS, by_level(PROBLEMS, HOW), n=2, think=True, sampling=HOW)


claim(
    Claim(
        id="siri",
        title="SIRI",
        paper="arXiv:2509.25176",
        family="efficient-reasoning",
        says="Cycles of a tight and a wide length limit, with nothing in the reward about length, overcome the trade-off: more accurate than "
        "the start with fewer tokens, and no less accurate than the wide limit alone, which writes longer answers.",
        experiment="The embedded model on word problems of one or two sums (easy) and three (hard), after a short SFT on worked answers with the last sum of each "
        "thought written up to five more times. 18 steps of 64 answers in 4 updates each by the registered method (three cycles of 6 steps between 64 "
        "and 32 tokens), and by the same with the limit kept at 64. Accuracy and tokens of two sampled answers to each of 400 "
        "held-out questions within 64 tokens.",
        arms={
            "start": partial(trained, method=None),
            "wide": partial(trained, method=FIXED),
            "SIRI": partial(trained, method=SIRI),
        },
        checks=(
            Check("more accurate than the start", "accuracy", "SIRI", "start", margin=0.1),
            Check("with fewer tokens", "length", "SIRI", "start", margin=2.0, lower=True),
            Check("no less accurate than wide", "accuracy", "SIRI", "wide", margin=-0.01),
            Check("with fewer tokens than wide", "length", "SIRI", "wide", margin=1.0, lower=True),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts", arms=RL), Shared("samples", arms=RL), Shared("updates", within=0.25, arms=RL)),
        tried="",
    ),
    __file__,
)
