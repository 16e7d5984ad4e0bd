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
            Check("LASER is shorter", "length", "LASER", "right or wrong", margin=2.0, lower=True),
            Check("and as accurate", "accuracy", "LASER", "right or wrong", margin=-0.03),
            Check("more accurate than with a short window", "accuracy", "LASER", "window of 24"),
            Check("LASER-D is shorter", "length", "LASER-D", "right or wrong", margin=2.0, lower=True),
            Check("and as accurate as right or wrong", "accuracy", "LASER-D", "right or wrong", margin=-0.03),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("updates"),
            Shared("prompts", arms=("right or wrong", "window of 24", "LASER")),
            Shared("samples", arms=("right or wrong", "window of 24", "LASER")),
        ),
        tried="",
    ),
    __file__,
)
