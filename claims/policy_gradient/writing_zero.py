"""Writing-Zero (BRPO): winning or losing against a sibling drawn at random is advantage enough, and is hacked less than the score itself."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.compared import ASKED, HOW, TASK, comparisons, proxy, reward_model
from posttrain.core.method import find_method

PAIRS, STEPS, N, PROMPTS, PROBLEMS = 480, 12, 16, 4, 400


def trained(seed: int, method: Any, **settings: Any) -> Measured:
    """12 steps of 16 answers to 4 questions, compared or scored by one reward model."""
    with Bench(seed) as bench:
        model = reward_model(bench, comparisons(bench, PAIRS))
        run = bench.run("run", method=method, reward=str(model), prompts=PROMPTS, **ASKED, **settings)
        return bench.measured(run, TASK, PROBLEMS, proxy(model), think=True, sampling=HOW)


def scored(seed: int) -> Measured:
    """GRPO on the score itself, with BRPO's mean over tokens and no KL."""
    method = find_method("grpo").but(rollout=f"sample(n={N})", aggregate="token-mean", terms=())
    return trained(seed, method, steps=STEPS)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return bench.measured(None, TASK, PROBLEMS, think=True, sampling=HOW)


claim(
    Claim(
        id="writing-zero",
        title="Writing-Zero (BRPO)",
        paper="arXiv:2506.00103",
        family="policy-gradient",
        says="Where answers can only be compared, winning or losing against a sibling drawn at random is advantage enough: it improves steadily, "
        "and resists the hacking that a scalar reward invites.",
        experiment="The embedded model on word problems. A reward model of 480 comparisons of the start's own answers, right over wrong, judges two "
        "answers, or scores one. 12 steps of 16 answers to 4 questions: the registered plan, which asks it 15 times a question; the win rate among "
        "all 16, which asks it 120 times; and GRPO on its score, as many answers and updates. Accuracy, which nobody is paid for, on 400 "
        "held-out problems.",
        arms={
            "BRPO": partial(trained, method=f"writing-zero(steps={STEPS}, n={N})"),
            "all siblings": partial(trained, method=f"spo-minimaximalist(steps={STEPS}, n={N}, kl=0, orders='drawn')"),
            "score": scored,
            "start": start,
        },
        checks=(
            Check("it improves", "accuracy", "BRPO", "start", margin=0.05),
            Check("better than on the score", "accuracy", "BRPO", "score", margin=0.02),
            Check("nearly as good as against all siblings", "accuracy", "BRPO", "all siblings", margin=-0.05),
        ),
        seeds=tuple(range(400, 410)),
        level="pocket",
        shares=tuple(
            Shared(what, arms=("BRPO", "all siblings", "score")) for what in ("prompts", "samples", "updates")
        ),
        tried="Attempts before this one trained lookup tables.",
    ),
    __file__,
)
