"""Writing-Zero (BRPO): a judge of two answers, trained on preferences, and one comparison with a drawn sibling improve taste without length hacking."""

from __future__ import annotations

from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import ASKED, HOW, comparisons, gold, passes
from posttrain.core.method import find_method

PAIRS, NOISE, LONGER, STEPS, N = 400, 0.1, 0.2, 15, 16
MEASURED: dict[str, Any] = {"level": 1, "think": False, "sampling": HOW}


def brpo(seed: int) -> Measured:
    """The registered plan: a judge from the preferences, by imitation and RL; then 15 steps of 16 answers to 8 requests."""
    with Bench(seed) as bench:
        pairs = comparisons(bench, PAIRS, NOISE, bias=LONGER)
        plan = f"writing-zero(steps={STEPS}, n={N}, pairs={pairs!r}, passes=0.2)"
        return bench.measured(bench.run("run", method=plan, **ASKED), "instructions", 200, gold, **MEASURED)


def scalar(seed: int) -> Measured:
    """A reward model of the same preferences, three passes, and GRPO on its score, with BRPO's mean over tokens and no KL."""
    with Bench(seed) as bench:
        pairs = comparisons(bench, PAIRS, NOISE, bias=LONGER)
        model = bench.run("rm", method="reward-model", task=pairs, **passes(pairs, 3, 8))
        method = find_method("grpo").but(rollout=f"sample(n={N})", aggregate="token-mean", terms=())
        run = bench.run("run", method=method, reward=str(model), steps=STEPS, **ASKED)
        return bench.measured(run, "instructions", 200, gold, **MEASURED)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return bench.measured(None, "instructions", 200, gold, **MEASURED)


claim(
    Claim(
        id="writing-zero",
        title="Writing-Zero (BRPO)",
        paper="arXiv:2506.00103",
        family="policy-gradient",
        says="Where answers can only be compared, winning or losing against a sibling drawn at random, as a judge trained on pairs sees it, is "
        "advantage enough: it improves steadily, and resists the length hacking that a scalar reward model invites.",
        experiment="The embedded model answers small requests. 400 comparisons of its own answers by a hidden taste, a tenth of the labels flipped, and in a "
        "fifth of them the longer answer wins. The registered plan trains its judge on them and takes 15 steps of 16 answers to 8 requests; "
        "GRPO takes as many on the score of a reward model of the same comparisons. gold: the hidden taste on 200 held-out requests; words: "
        "the length of answers, of which the taste likes nine.",
        arms={"BRPO": brpo, "scalar reward model": scalar, "start": start},
        checks=(
            Check("it improves", "gold", "BRPO", "start", margin=0.1),
            Check("better than with the scalar model", "gold", "BRPO", "scalar reward model"),
            Check("without growing longer", "words", "BRPO", "scalar reward model", lower=True),
        ),
        seeds=tuple(range(400, 410)),
        level="pocket",
        shares=tuple(Shared(what, arms=("BRPO", "scalar reward model")) for what in ("prompts", "samples")),
        tried="Attempts before this one trained lookup tables. On word problems, seed 100, with a reward model of 480 right and wrong answers as judge, "
        "12 steps: BRPO 0.53, GRPO on its score 0.71, the win rate among all siblings 0.33, the start 0.47. Nothing there could be hacked by "
        "length, and the judge was a scalar model itself; hence a task of taste and the plan's own judge. There, seed 100: BRPO has gold 0.41 and 8.0 words, GRPO on the scalar model 0.86 and 8.7, from -0.37 and "
        "6.4 at the start.",
    ),
    __file__,
)
