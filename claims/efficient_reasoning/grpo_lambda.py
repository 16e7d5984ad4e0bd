"""GRPO-lambda: a length penalty on every group costs accuracy as answers shorten; on the best solved fifth of the groups alone it
shortens and accuracy holds."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.long_thoughts import HOW, TASK, by_level, rambling
from posttrain.core.method import Method, find_method
from posttrain.systems.efficient_reasoning.grpo_lambda import short_where_solved as switch

STEPS, PROMPTS, PROBLEMS = 16, 10, 300


def trained(seed: int, method: Method) -> Measured:
    """16 steps of 8 answers to each of 10 questions from the rambling start; then one sampled answer to each of 300 held-out ones."""
    with Bench(seed) as bench:
        run = bench.run(
            "rl", method=method, model=str(rambling(bench)), task=TASK, think=True, steps=STEPS, prompts=PROMPTS, sampling=HOW
        )  # fmt: skip
        return bench.measured(run, TASK, PROBLEMS, by_level(PROBLEMS, HOW), think=True, sampling=HOW)


REGISTERED = find_method("grpo-lambda")

claim(
    Claim(
        id="grpo-lambda",
        title="GRPO-lambda",
        paper="arXiv:2505.18086",
        family="efficient-reasoning",
        says="A length penalty on all right answers shortens them until accuracy falls; put on the 20% of groups that are "
        "solved best, it shortens answers and accuracy stays that of right or wrong alone.",
        experiment="The embedded model on word problems of one or two sums (easy) and three (hard), after a short SFT on worked answers with the last sum of each "
        "thought written up to five more times. 16 steps of GRPO, 8 answers to 10 questions each: the registered method (the best solved fifth "
        "of the groups pays for length, alpha 0.2), the same with every group paying, and with none. Accuracy and tokens of one sampled "
        "answer to each of 300 held-out questions.",
        arms={
            "right or wrong": partial(trained, method=REGISTERED.but(shaping=())),
            "length penalty": partial(trained, method=REGISTERED.but(shaping=switch.but(top=1.0))),
            "GRPO-lambda": partial(trained, method=REGISTERED),
        },
        checks=(
            Check("shorter than right or wrong", "length", "GRPO-lambda", "right or wrong", margin=4.0, lower=True),
            Check("and as accurate", "accuracy", "GRPO-lambda", "right or wrong", margin=-0.03),
            Check("more accurate than the penalty", "accuracy", "GRPO-lambda", "length penalty"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="Attempt 1 trained lookup tables and was recorded as shown; on SmolLM2-135M (30 steps, three seeds, below) answers were shorter "
        "by a token in fifteen and accuracy 2.5 to 3 points lower on every seed, which contradicts it. Trials were on seed 100. After "
        "only 30 or 40 updates of SFT the start was right in 0.1 to 0.4 and what it repeated was often wrong, so that training on right "
        "or wrong alone took the repetitions out; with 80 it is right in 0.63 at 41 tokens, and is used here. With it: GRPO-lambda 25.7 "
        "tokens and 0.75 right, a penalty on every group 22.7 and 0.78, right or wrong 41.2 and 0.68: that the penalty on all groups "
        "costs accuracy, which the paper is written for, did not show there, and stays a check. From the worse start after 20 steps 22.5 "
        "tokens and 0.59, 21.6 and 0.61, 25.0 and 0.57. The margin of 4 tokens is a tenth of the start's length. The penalty's strength "
        "is the registered 0.2 in both arms; learning rate and answers are the package's, and none was tuned.",
    ),
    __file__,
)
