"""OREAL: blame reshaped by leave-one-out adds to imitation of right answers, and tokens are weighed by a learned model."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Measured, run_arm
from claims.machinery.claim import Check, Claim, Shared, claim
from posttrain.core.method import Method, find_method

STEPS, PROMPTS, PROBLEMS = 16, 8, 400
ALIKE = "oreal(weigh=False)"


def trained(seed: int, method: str | Method) -> Measured:
    """16 steps of 16 answers to each of 8 questions, one update a step."""
    return run_arm(
        seed, method=method, task="word_problems", problems=PROBLEMS, prompts=PROMPTS, steps=STEPS, think=True,
        sampling={"max_tokens": 48},
    )  # fmt: skip


def without(seed: int, advantage: str) -> Measured:
    """OREAL with another credit; its token-level reward model learns as before."""
    return trained(seed, find_method("oreal").but(advantage=advantage))


def by_reinforce(seed: int) -> Measured:
    """Every answer by its reward above the mean of its group's others; the same frozen first steps, KL, loss and mean over tokens."""
    return trained(seed, find_method("oreal").but(advantage="rloo", select=()))


claim(
    Claim(
        id="oreal",
        title="OREAL",
        paper="arXiv:2502.06781",
        family="policy-gradient",
        says="Blame of wrong answers, reshaped by leave-one-out, adds to imitating right ones; weights of tokens from a reward model "
        "that learned from outcomes alone add to both; the whole beats REINFORCE at equal samples.",
        experiment="The embedded model on word problems with a written chain of thought. 16 steps of 16 answers to 8 questions by the "
        "registered method (in the first quarter of the steps only its token-level reward model learns); by the same with every token "
        "weighed alike; by the same with right answers only; and by REINFORCE on all answers, which is updated as often. Accuracy of "
        "one sampled answer to each of 400 held-out problems.",
        arms={
            "OREAL": partial(trained, method="oreal"),
            "tokens alike": partial(without, advantage=ALIKE),
            "right answers only": partial(without, advantage="oreal(weigh=False, negative=0.0)"),
            "REINFORCE": by_reinforce,
        },
        checks=(
            Check("reshaped blame adds to imitation", "accuracy", "tokens alike", "right answers only"),
            Check("weights of tokens add to it", "accuracy", "OREAL", "tokens alike"),
            Check("the whole beats REINFORCE", "accuracy", "OREAL", "REINFORCE"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="Attempts 1 to 3 trained lookup tables, each arm at its own best rate.",
    ),
    __file__,
)
