"""SIRI: a length limit that falls and rises in cycles ends as accurate as a wide one, with fewer tokens."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.long_thoughts import TASK, by_level, rambling
from posttrain.core.method import Method, find_method
from posttrain.systems.efficient_reasoning.siri import length_cycles

WIDE, STEPS, PROMPTS, PROBLEMS = 96, 12, 16, 300
HOW = {"max_tokens": WIDE}
SIRI = find_method("siri")
FIXED = SIRI.but(rollout=length_cycles.but(cycle=(1.0, 0)))
RL = ("wide", "SIRI")


def trained(seed: int, method: Method | None) -> Measured:
    """12 steps of 8 answers to each of 16 questions, 4 updates each, from the rambling start; then two sampled answers to each of 300
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
        "thought written up to five more times. 12 steps of 128 answers in 4 updates each by the registered method (three cycles of 4 steps between 96 "
        "and 48 tokens), and by the same with the limit kept at 96. Accuracy and tokens of two sampled answers to each of 300 "
        "held-out questions within 96 tokens.",
        arms={
            "start": partial(trained, method=None),
            "wide": partial(trained, method=FIXED),
            "SIRI": partial(trained, method=SIRI),
        },
        checks=(
            Check("more accurate than the start", "accuracy", "SIRI", "start"),
            Check("with fewer tokens", "length", "SIRI", "start", margin=10.0, lower=True),
            Check("no less accurate than wide", "accuracy", "SIRI", "wide", margin=-0.01),
            Check("with fewer tokens than wide", "length", "SIRI", "wide", margin=4.0, lower=True),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts", arms=RL), Shared("samples", arms=RL), Shared("updates", within=0.25, arms=RL)),
        tried="Attempts 1 and 2 trained lookup tables; after a record that missed a margin of 0.01 in accuracy against the wide limit the next "
        "one had 0.02. Here it is 0.01 again, since the paper says that the trade-off is overcome, and against the start there is no "
        "tolerance: performance improves as length falls. The paper saves 46.9% of the start's tokens at the trough of its last cycle; a "
        "run here ends at a crest, and 10 tokens, half of that share of the start's 41, are asked for. Trials were on seed 100. "
        "After only 30 or 40 updates of SFT the start was right in 0.1 to 0.4 and what it repeated was often wrong, so that training on "
        "right or wrong alone took the repetitions out; with 80 it is right in 0.63 at 41 tokens, and is used here. With limits of 64 and "
        "32, 18 steps of 64 answers: SIRI 22.0 tokens and 0.58 right, wide 22.5 and 0.57, the start 40.7 and 0.63: at 64 tokens the wide "
        "limit cut a sixth of the start's answers and shortened them by itself, and an update saw two questions, so both lost accuracy. "
        "So limits are 96 and 48 and a step has 16 questions; that was not tried. Before, from the worse start, a limit kept at 32 was "
        "tried too: 24.4 tokens and 0.54, SIRI 22.5 and 0.56, wide 22.4 and 0.61. Groups of equal reward are left out, so updates differ "
        "by some.",
    ),
    __file__,
)
