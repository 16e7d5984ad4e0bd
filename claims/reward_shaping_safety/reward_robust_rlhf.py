"""Reward-robust RLHF: the nominal reward mixed with the worst of an ensemble's heads is worth more than either alone."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import ASKED, HOW, comparisons, gold, passes
from posttrain.core.method import find_method

PAIRS, NOISE, STEPS, BETA = 200, 0.25, 40, 0.02


def robust(seed: int, lam: float) -> Measured:
    """The registered plan: a reward model of 200 pairs, 5 heads, 40 steps of PPO with 64 answers each."""
    with Bench(seed) as bench:
        pairs = comparisons(bench, PAIRS, NOISE)
        run = bench.run("robust", method=f"reward-robust-rlhf(lam={lam}, steps={STEPS}, pairs={pairs!r})", **ASKED)
        return bench.measured(run, "instructions", 200, gold, level=1, think=False, sampling=HOW)


def one_model(seed: int) -> Measured:
    """PPO on a single reward model of the same pairs, as many passes, the same KL price and steps."""
    with Bench(seed) as bench:
        pairs = comparisons(bench, PAIRS, NOISE)
        model = bench.run("rm", method="reward-model", task=pairs, **passes(pairs, 3, 8))
        method = find_method("ppo").but(shaping=f"kl_in_reward(coef={BETA})")
        run = bench.run("ppo", method=method, reward=str(model), steps=STEPS, **ASKED)
        return bench.measured(run, "instructions", 200, gold, level=1, think=False, sampling=HOW)


claim(
    Claim(
        id="reward-robust-rlhf",
        title="Reward-robust RLHF",
        paper="arXiv:2409.15360",
        family="reward-shaping-safety",
        says="PPO on a mix of the nominal reward and the minimum over an ensemble's heads ends higher than with the nominal reward "
        "or one reward model, and than with the minimum alone.",
        experiment="The embedded model answers small requests; 200 comparisons of its own answers by a hidden taste, a quarter of the "
        "labels flipped. 40 steps of PPO with 64 answers each: the registered plan with the mix of 0.6, the nominal reward alone "
        "(lam 1), the minimum alone (lam 0), and PPO on one reward model. gold: the hidden taste on 200 held-out requests.",
        arms={
            "mix": partial(robust, lam=0.6),
            "nominal": partial(robust, lam=1.0),
            "minimum": partial(robust, lam=0.0),
            "one reward model": one_model,
        },
        checks=(
            Check("worth more than with the nominal reward", "gold", "mix", "nominal"),
            Check("worth more than with one reward model", "gold", "mix", "one reward model"),
            Check("worth more than the minimum alone", "gold", "mix", "minimum"),
        ),
        seeds=tuple(range(400, 410)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="",
    ),
    __file__,
)
