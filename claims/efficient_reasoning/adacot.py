"""AdaCoT: RL on hard questions alone teaches to think always, unless the token that decides is left out of the loss; the penalties for
thoughts missing and thoughts too many set how often a policy thinks."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.long_thoughts import by_level

WARMUP, SKEWED, MIXED, PROMPTS, PROBLEMS = 40, 8, 10, 8, 240
TASK = "arithmetic(level=1) + arithmetic(level=3)"  # 3+4, or 47-62, 38*6 and 12+7-15
HOW = {"max_tokens": 64}


def trained(seed: int, options: str) -> Measured:
    """The registered plan on sums of single digits, which need no thought, and on products and chains of two digits, which do; then one sampled
    answer to each of 240 held-out questions, half of them easy."""
    plan = f"adacot(warmup={WARMUP}, skewed={SKEWED}, {options})"
    with Bench(seed) as bench:
        run = bench.run("adacot", method=plan, task="arithmetic", level=3, think=True, prompts=PROMPTS, sampling=HOW)
        return bench.measured(run, TASK, PROBLEMS, by_level(PROBLEMS, HOW), think=True, sampling=HOW)


SHORT, FULL = ("mask", "no mask"), ("AdaCoT", "thoughts cost more")

claim(
    Claim(
        id="adacot",
        title="AdaCoT",
        paper="arXiv:2505.11896",
        family="efficient-reasoning",
        says="RL on questions that all need a thought makes a model think about easy ones too; masking the loss of the deciding token "
        "keeps the boundary learned before. The penalties then set how often it thinks: it thinks about hard questions and not about "
        "easy ones, and less where a thought too many costs more.",
        experiment="The embedded model on sums of single digits (no thought needed) and on products and chains of two digits (needed), by the registered "
        "plan: 40 updates of SFT on both modes, 8 steps of PPO on hard questions alone with and without the mask; and after the mask 10 more on both kinds, "
        "with the default penalties (missing 0.3, too many 0.1) and with those exchanged. 64 answers in 4 updates a step. Thoughts and "
        "accuracy of one sampled answer to each of 240 held-out questions.",
        arms={
            "mask": partial(trained, options="mixed=0"),
            "no mask": partial(trained, options="mixed=0, mask=False"),
            "AdaCoT": partial(trained, options=f"mixed={MIXED}"),
            "thoughts cost more": partial(trained, options=f"mixed={MIXED}, points=((0.1, 0.3),)"),
        },
        checks=(
            Check(
                "the mask keeps easy questions free of thoughts",
                "easy_thinks",
                "mask",
                "no mask",
                margin=0.05,
                lower=True,
            ),
            Check("in the end it thinks about the hard ones", "chooses", "AdaCoT", 0.5),
            Check("a dearer thought is thought less often", "thinks", "thoughts cost more", "AdaCoT", lower=True),
        ),
        seeds=tuple(range(200, 208)),
        level="pocket",
        shares=tuple(Shared(what, arms=arms) for what in ("prompts", "samples", "updates") for arms in (SHORT, FULL)),
        tried="Attempt 1 trained lookup tables. On word problems of one and of two or three sums, seed 100, with 20 updates of SFT, 12 steps of "
        "each PPO phase: thoughts about easy questions 0.73 with the mask and 0.64 without, 0.62 of all in the end and 0.72 with the "
        "dearer thought: after so little SFT easy and hard were hardly told apart, and one sum is right at once in 0.4 only. So the "
        "questions are of arithmetic, single digits being right at once in 0.7 to 0.8, and SFT is twice as long. Then, seed 100: thoughts "
        "about easy questions 0.19 with the mask, 0.48 without; in the end 0.01 of easy and 1.0 of hard ones; with the dearer thought "
        "0.46 of all against 0.51, and accuracy 0.64 against 0.77, which is the frontier. Labels are the levels of the school task; the "
        "paper's come from a language model.",
    ),
    __file__,
)
