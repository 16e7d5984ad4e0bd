"""Demystifying long CoT: with a cosine of the length in the reward answers stay inside the window, at no cost in accuracy."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.long_thoughts import TASK, by_level, rambling
from posttrain.core.method import Method, find_method
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

WINDOW, STEPS, PROMPTS, PROBLEMS = 64, 10, 4, 300
HOW = {"max_tokens": WINDOW}
REGISTERED = find_method("demystify-long-cot")
CLASSIC = REGISTERED.but(shaping=(kl_in_reward.but(coef=0.01),))


def trained(seed: int, method: Method) -> Measured:
    """10 steps of 16 answers to each of 4 questions, 4 updates each, from the rambling start; then one sampled answer to each of 300
    held-out questions in the same window."""
    with Bench(seed) as bench:
        run = bench.run(
            "rl", method=method, model=str(rambling(bench)), task=TASK, think=True, steps=STEPS, prompts=PROMPTS, sampling=HOW
        )  # fmt: skip
        return bench.measured(run, TASK, PROBLEMS, by_level(PROBLEMS, HOW), think=True, sampling=HOW)


claim(
    Claim(
        id="demystify-long-cot",
        title="Demystifying long CoT",
        paper="arXiv:2502.03373",
        family="efficient-reasoning",
        says="After SFT on long chains, PPO on right or wrong alone lets answers run over the window; with a cosine of the length (short is "
        "better when right, long when wrong, over the window worst) they stay inside, and accuracy is no worse.",
        experiment="The embedded model on word problems of one or two sums (easy) and three (hard), after a short SFT on worked answers with the last sum of each "
        "thought written up to five more times. 10 steps of PPO, 16 answers to 4 questions each, window 64: the registered method (cosine, "
        "repetition penalty, lambda 1, KL 0.01) and the same paid for right or wrong alone. Accuracy, tokens and the share cut off by the window, of "
        "one sampled answer to each of 300 held-out questions.",
        arms={
            "right or wrong": partial(trained, method=CLASSIC),
            "cosine": partial(trained, method=REGISTERED),
        },
        checks=(
            Check("fewer run over the window", "cut", "cosine", "right or wrong", lower=True),
            Check("no less accurate", "accuracy", "cosine", "right or wrong", margin=-0.03),
            Check("wrong answers are longer than right ones by more", "longer_when_wrong", "cosine", "right or wrong"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="Attempt 1 trained lookup tables. Trials were on seed 100. After only 30 or 40 updates of SFT the start was right in 0.1 to 0.4 "
        "and what it repeated was often wrong, so that training on right or wrong alone took the repetitions out; with 80 it is right in "
        "0.63 at 41 tokens, and is used here. With the worse start and 12 steps: cut off 0.003 with the cosine, 0.007 with right or wrong "
        "alone and 0.16 at the start; right 0.31, 0.24 and 0.32; 28.1, 27.5 and 40.8 tokens: answers did not grow in either arm, as they "
        "do in the paper's runs. From the start that is used, one trial: right "
        "0.51 at 28.6 tokens with the cosine, 0.33 at 31.4 with right or wrong alone. The repetition penalty is part of the registered method; "
        "40-grams hardly repeat within 64 tokens, so it is not tested apart; nor is a linear length reward, which the paper does not "
        "have. That wrong answers become longer than right ones is what the cosine's signs ask for.",
    ),
    __file__,
)
