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
            Check("shorter than right or wrong", "length", "GRPO-lambda", "right or wrong", margin=2.0, lower=True),
            Check("and as accurate", "accuracy", "GRPO-lambda", "right or wrong", margin=-0.03),
            Check("more accurate than the penalty", "accuracy", "GRPO-lambda", "length penalty"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="",
    ),
    __file__,
)
