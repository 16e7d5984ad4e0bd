"""DR-IRL: rewards learned from demonstrations alone align a policy, and credit scaled by difficulty does it better than plain GRPO."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.environments.task import task
from posttrain.evals.accuracy import accuracy

KINDS = ("word_problems", "counting", "units")  # the categories, with a reward model each
ROWS, ROUNDS, STEPS, PROBLEMS = (
    128,
    2,
    8,
    120,
)  # demonstrations a category, rounds, steps of GRPO-S a round, problems to test
HOW: dict[str, Any] = {"max_tokens": 48}
ASKED: dict[str, Any] = {"prompts": 16, "sampling": HOW}


def demonstrations(bench: Bench) -> str:
    """128 questions of each kind with a worked answer; other ones for each seed."""
    rows = []
    for kind in KINDS:
        env = task(kind, think=True)
        for p in (env.prompt(1000 * bench.seed + i) for i in range(ROWS)):
            shown = f"<think>{p.info['steps']}</think>{p.answer}"
            rows.append({"question": p.last, "answer": str(p.answer), "demonstration": shown, "category": kind})
    return bench.rows("shown", rows)


def by_kind(policy: Policy) -> dict[str, float]:
    """Accuracy on other questions of each kind, and of the kind that is worst."""
    found = {k: accuracy(policy, task(k, think=True), PROBLEMS, Sampling(**HOW)).accuracy for k in KINDS}
    return {**found, "mean": fmean(found.values()), "worst": min(found.values())}


def measured(bench: Bench, run: Any) -> Measured:
    def further(policy: Policy, env: Environment) -> dict[str, float]:
        return by_kind(policy)

    return bench.measured(run, KINDS[0], 1, further, think=True, sampling=HOW)


def by_irl(seed: int, scaled: bool) -> Measured:
    """The registered plan: 2 rounds of one own answer beside each demonstration, a reward model a kind, 8 steps of 64 answers."""
    with Bench(seed) as bench:
        plan = f"dr-irl(rounds={ROUNDS}, steps={STEPS}, categories='{','.join(KINDS)}', scaled={scaled})"
        return measured(bench, bench.run("dr-irl", method=plan, task=demonstrations(bench), num_generations=4, **ASKED))


def by_sft(seed: int) -> Measured:
    """Imitation of the same demonstrations in as many updates."""
    with Bench(seed) as bench:
        run = bench.run("sft", method="sft", task=demonstrations(bench), steps=ROUNDS * STEPS, **ASKED)
        return measured(bench, run)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return measured(bench, None)


claim(
    Claim(
        id="dr-irl",
        title="DR-IRL",
        paper="arXiv:2503.18991",
        family="reward-shaping-safety",
        says="GRPO on rewards that inverse RL learned from demonstrations, one model a category, aligns better when its credit is scaled by "
        "task difficulty (GRPO-S); and better than imitating the same demonstrations.",
        experiment="The embedded model on three kinds of school task, 128 worked answers of each. The registered plan, 2 rounds: one own "
        "answer beside each demonstration, a reward model a kind taught to prefer the demonstration, 8 steps of 64 answers by "
        "GRPO-S. Against it the same plan with plain GRPO on its reward models, SFT on the demonstrations for as many updates of the policy, and "
        "the start. Accuracy, which none is paid for, on 120 other problems of each kind: the mean, and the worst kind.",
        arms={
            "GRPO-S": partial(by_irl, scaled=True),
            "GRPO": partial(by_irl, scaled=False),
            "SFT": by_sft,
            "start": start,
        },
        checks=(
            Check("better than the start", "mean", "GRPO-S", "start", margin=0.03),
            Check("better than without scaling", "mean", "GRPO-S", "GRPO"),
            Check("also on the worst kind", "worst", "GRPO-S", "GRPO"),
            Check("better than imitation", "mean", "GRPO-S", "SFT"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("samples", arms=("GRPO-S", "GRPO")),
            Shared("prompts", arms=("GRPO-S", "GRPO")),
            Shared("updates", arms=("GRPO-S", "GRPO", "SFT")),
        ),
        tried="Attempts 1 and 2 trained lookup tables and were not shown: scaling gained nothing. On the embedded model, seed 100: mean 0.656 with "
        "GRPO-S and 0.669 with GRPO from 0.453, and 0.794 by SFT, so two of the checks are not expected to hold; they are kept since they are "
        "what the paper says. Nothing was tuned. Rewards cost GRPO one own answer beside each demonstration more than SFT, and "
        "its own 1024 answers.",
    ),
    __file__,
)
