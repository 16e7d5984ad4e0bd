"""1-shot RLVR: reinforcement learning on a single example teaches most of what the whole set teaches."""

from __future__ import annotations

from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from posttrain.core.method import find_method

TASK, SET, EPOCHS, STEPS, PROMPTS, PROBLEMS = "counting", 24, 4, 24, 8, 300
HOW = {"max_tokens": 48}


def asked(seed: int) -> dict[str, Any]:
    """Another 24 questions for each seed."""
    return {"task": f"{TASK}(seed={seed})", "think": True, "prompts": PROMPTS, "sampling": HOW}


def one_example(seed: int) -> Measured:
    """The registered plan: 4 passes over 24 examples on a copy, then 24 steps of 8 copies of the one whose accuracy varied most."""
    with Bench(seed) as bench:
        plan = f"one-shot-rlvr(steps={STEPS}, epochs={EPOCHS}, first={SET})"
        return measured(bench, bench.run("one", method=plan, **asked(seed)))


def whole_set(seed: int) -> Measured:
    """The plan's method on the 24 examples for as many steps."""
    learn = find_method("grpo").but(
        terms=("kl(coef=0.001, kind='k3')", "entropy(coef=0.001)"), aggregate="token_mean", prompts=f"recorded(first={SET})"
    )  # fmt: skip
    with Bench(seed) as bench:
        return measured(bench, bench.run("whole", method=learn, steps=STEPS, **asked(seed)))


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return measured(bench, None)


def measured(bench: Bench, run: Any) -> Measured:
    return bench.measured(run, TASK, PROBLEMS, think=True, sampling=HOW)


claim(
    Claim(
        id="one-shot-rlvr",
        title="1-shot RLVR",
        paper="arXiv:2504.20571",
        family="curriculum-data",
        says="RL with a verifiable reward on one example, the one whose accuracy varied most in a run over the whole set, raises held-out accuracy "
        "about as far as RL on the whole set.",
        experiment="The embedded model on counting with a written chain of thought, about half right at the start. The registered plan: 4 passes "
        "over 24 examples on a copy choose the example, then 24 steps of 8 answers to each of 8 copies of it; and its method on the 24 examples "
        "for as many steps, answers and updates. Accuracy of one sampled answer to each of 300 held-out problems.",
        arms={"one example": one_example, "whole set": whole_set, "start": start},
        checks=(
            Check("one example helps", "accuracy", "one example", "start", margin=0.05),
            Check("about as much as the whole set", "accuracy", "one example", "whole set", margin=-0.05),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=tuple(Shared(what, arms=("one example", "whole set")) for what in ("samples", "updates")),
        tried="Attempt 1 was on counting without the plan, with a learning rate of its own and no KL: gains of 0.04 to 0.26 of the whole set's 0.29 to "
        "0.41, and losses with a wrong label. The plan on word problems for 16 steps (seed 100): one example 0.49, whole set 0.77, start 0.47. "
        "So it is counting again, and 24 steps. Margins are as they were.",
    ),
    __file__,
)
