"""PAR: a reward model's preference over a reference answer, which is bounded, is a safer aim for PPO than its raw score."""

from __future__ import annotations

from pathlib import Path

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import ASKED, HOW, comparisons, gold, passes
from posttrain.core.method import find_method

PAIRS, NOISE, PASSES, STEPS = 200, 0.1, 10, 60


def reward_model(bench: Bench) -> Path:
    """A registered reward model of 200 comparisons, ten passes: confident, so that its scores spread over several units."""
    pairs = comparisons(bench, PAIRS, NOISE)
    return bench.run("rm", method="reward-model", task=pairs, **passes(pairs, PASSES, 16))


def optimised(seed: int, shaped: bool) -> Measured:
    """60 steps of 8 answers to 8 fresh requests."""
    with Bench(seed) as bench:
        model = str(reward_model(bench))
        if shaped:
            run = bench.run("par", method=f"par(steps={STEPS})", reward=model, **ASKED)
        else:
            raw = find_method("ppo").but(shaping="kl_in_reward(coef=0.005)")
            run = bench.run("raw", method=raw, reward=model, steps=STEPS, **ASKED)
        return bench.measured(run, "instructions", 200, gold, level=1, think=False, sampling=HOW)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return bench.measured(None, "instructions", 200, gold, level=1, think=False, sampling=HOW)


claim(
    Claim(
        id="par",
        title="PAR",
        paper="arXiv:2502.18770",
        family="reward-shaping-safety",
        says="PPO on sigmoid(r - r_ref), the reward model's preference for an answer over a reference answer, improves the true quality "
        "and is hacked less than PPO on the raw score r at the same KL price.",
        experiment="The embedded model answers small requests. A reward model is trained by ten passes over 200 comparisons of its own answers by a "
        "hidden taste, a tenth of the labels flipped; then 60 steps of 64 answers by the registered plan, and by PPO on the raw score "
        "with the same KL price (0.005), critic, answers and updates. gold: the hidden taste on 200 held-out requests.",
        arms={
            "PAR": lambda seed: optimised(seed, True),
            "raw score": lambda seed: optimised(seed, False),
            "start": start,
        },
        checks=(
            Check("better than the start", "gold", "PAR", "start", margin=0.3),
            Check("better than with the raw score", "gold", "PAR", "raw score"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=tuple(Shared(what, arms=("PAR", "raw score")) for what in ("prompts", "samples", "updates")),
        tried="Attempt 1 trained lookup tables and depended on stopping at 40 steps. Attempt 2 paid for right over wrong word problems, of which the "
        "reward model knew little: both arms lost (0.25 and 0.33 from 0.47). Its scores stayed within one unit (0.66 to 0.90 after training), where a "
        "sigmoid is a line, so that the shape that the paper is about never came into play; hence a task of taste and a confident reward model.",
    ),
    __file__,
)
