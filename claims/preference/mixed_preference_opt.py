"""Mixed preference optimisation: DPO where a reward model is sure, PPO from there where it is not."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import HOW, comparisons, gold, passes

PAIRS, NOISE, PROMPTS, LR = 480, 0.1, 16, 3e-4


def measured(bench: Bench, run: object) -> Measured:
    return bench.measured(run, "instructions", 200, gold, level=1, think=False, sampling=HOW)  # type: ignore[arg-type]


def mixed(seed: int, order: str = "easy first", reference: str = "dpo") -> Measured:
    """The registered plan: a pass of the reward model, one of DPO over half of the pairs, one of PPO over the prompts of the others."""
    with Bench(seed) as bench:
        pairs = comparisons(bench, PAIRS, NOISE)
        plan = f"mixed-preference-opt(order={order!r}, reference={reference!r})"
        common = {"prompts": PROMPTS, "sampling": HOW, "num_generations": 4, "lr": LR}
        return measured(bench, bench.run("plan", method=plan, task=pairs, eval_problems=0, **common))


def direct(seed: int) -> Measured:
    """DPO on all pairs for as many updates: PPO takes four from each batch of prompts."""
    with Bench(seed) as bench:
        pairs = comparisons(bench, PAIRS, NOISE)
        told = passes(pairs, 2.5, PROMPTS)
        return measured(bench, bench.run("dpo", method="dpo", task=pairs, lr=LR / 10, **told))


claim(
    Claim(
        id="mixed-preference-opt",
        title="Mixed preference optimisation",
        paper="arXiv:2403.19443",
        family="preference",
        says="DPO on the pairs that a reward model tells apart easily, then PPO on the prompts of the others with the DPO model as start and reference, "
        "ends better than DPO, than the same stages with the pairs split at random, and than PPO held to the first model.",
        experiment=f"The embedded model answers small requests; {PAIRS} comparisons of its own answers by a hidden taste, noisier where the two are worth the same, a "
        "tenth of the labels flipped besides. The registered plan; the same with pairs split at random; the same stages with the hard pairs first; the same with the first "
        "model as PPO's reference; DPO on all pairs for as many updates. The taste's mean over two answers to each of 200 held-out requests, which no arm sees. DPO asks nobody for "
        "further rewards, so that it is the weaker baseline; the random split spends all that the plan spends.",
        arms={
            "mixed": mixed,
            "random split": partial(mixed, order="random"),
            "hard first": partial(mixed, order="hard first"),
            "held to the start": partial(mixed, reference="start"),
            "DPO": direct,
        },
        checks=(
            Check("the split matters", "gold", "mixed", "random split"),
            Check("better than the other order", "gold", "mixed", "hard first"),
            Check("a better reference", "gold", "mixed", "held to the start"),
            Check("better than DPO", "gold", "mixed", "DPO", margin=0.1),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("updates", within=0.06),
            Shared("samples", arms=("mixed", "random split", "hard first", "held to the start")),
        ),
        tried="Written and not tried on any seed beyond seeing that its arms run.",
    ),
    __file__,
)  # fmt: skip
