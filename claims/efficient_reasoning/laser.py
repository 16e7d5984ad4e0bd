"""LASER: a bonus for right answers within a target length shortens them at no cost, where a window of that length costs accuracy;
LASER-D, whose targets follow difficulty, does so too."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.long_thoughts import HOW, TASK, WINDOW, by_level, rambling
from posttrain.core.method import Method, find_method

STEPS, PROMPTS, PROBLEMS = 16, 8, 300
TARGET = WINDOW // 4  # LASER's own


def trained(seed: int, method: str | Method, window: int = WINDOW) -> Measured:
    """16 steps of 8 answers to each of 8 questions, 2 updates each, from the rambling start, under this window; then one sampled answer
    to each of 300 held-out questions under the wide one."""
    with Bench(seed) as bench:
        run = bench.run(
            "rl", method=method, model=str(rambling(bench)), task=TASK, think=True, steps=STEPS, prompts=PROMPTS,
            sampling={"max_tokens": window},
        )  # fmt: skip
        return bench.measured(run, TASK, PROBLEMS, by_level(PROBLEMS, HOW), think=True, sampling=HOW)


PLAIN = find_method("laser").but(shaping=())

claim(
    Claim(
        id="laser",
        title="LASER",
        paper="arXiv:2505.15612",
        family="efficient-reasoning",
        says="A bonus for right answers within a target length shortens answers at little or no cost in accuracy, where a window of "
        "that length costs accuracy; LASER-D, whose targets follow the difficulty of the question, shortens too and is at least as accurate.",
        experiment="The embedded model on word problems of one or two sums (easy) and three (hard), after a short SFT on worked answers with the last sum of each "
        "thought written up to five more times. 16 steps of 64 answers in 2 updates each, window 96: the registered LASER (target 24, a quarter), "
        "LASER-D (targets looked at every 5 steps), the same without a bonus, and without a bonus in a window of 24. Accuracy and "
        "tokens of one sampled answer to each of 300 held-out questions in the wide window.",
        arms={
            "right or wrong": partial(trained, method=PLAIN),
            "window of 24": partial(trained, method=PLAIN, window=TARGET),
            "LASER": partial(trained, method="laser"),
            "LASER-D": partial(trained, method="laser-d(rollout='laser_d(every=5)')"),
        },
        checks=(
            Check("LASER is shorter", "length", "LASER", "right or wrong", margin=4.0, lower=True),
            Check("and as accurate", "accuracy", "LASER", "right or wrong", margin=-0.03),
            Check("more accurate than with a short window", "accuracy", "LASER", "window of 24"),
            Check("LASER-D is shorter", "length", "LASER-D", "right or wrong", margin=4.0, lower=True),
            Check("and as accurate as right or wrong", "accuracy", "LASER-D", "right or wrong", margin=-0.03),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("updates"),
            Shared("prompts", arms=("right or wrong", "window of 24", "LASER")),
            Shared("samples", arms=("right or wrong", "window of 24", "LASER")),
        ),
        tried="Attempts 1 and 2 trained lookup tables. Trials were on seed 100. After only 30 or 40 updates of SFT the start was right in 0.1 "
        "to 0.4 and what it repeated was often wrong, so that training on right or wrong alone took the repetitions out; with 80 it is "
        "right in 0.63 at 41 tokens, and is used here. With the worse start and 20 steps: LASER 22.9 tokens and 0.61 right, LASER-D 23.4 "
        "and 0.58, right or wrong 25.0 and 0.55, the window of 24 tokens 21.2 and 0.30. From the start that is used, after the margins were set: LASER 23.6 "
        "tokens and 0.78, right or wrong 29.2 and 0.63. The margin of 4 tokens is a tenth of the start's length. LASER-D samples questions that only set its targets (256 answers each time, "
        "every 5 steps here where a run has 16, every 20 with the authors), so its samples are not equal; updates are. LASER-DE is not "
        "compared.",
    ),
    __file__,
)
