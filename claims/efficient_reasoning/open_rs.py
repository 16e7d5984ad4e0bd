"""Open-RS: a small model gains within few steps; a cosine of the length keeps its answers short at no loss, and easy questions mixed in
help it on hard ones early on."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.long_thoughts import by_level, rambling

EASY, HARD, ROUNDS, STEPS, PROMPTS, PROBLEMS = 2, 5, 2, 10, 8, 300
HOW = {"max_tokens": 64}
RL = ("hard alone", "mixed", "Open-RS")


def trained(seed: int, options: str | None) -> Measured:
    """2 rounds of 10 steps, 6 answers to each of 8 questions, from a rambling start that writes thoughts in R1's form; then one sampled
    answer to each of 300 held-out hard questions."""
    asked: dict[str, Any] = {"level": HARD, "think": True, "sampling": HOW}
    with Bench(seed) as bench:
        run = rambling(bench, line="\n")
        if options is not None:
            plan = f"open-rs(rounds={ROUNDS}, steps={STEPS}{options})"
            run = bench.run("rl", method=plan, model=str(run), task="word_problems", prompts=PROMPTS, **asked)
        return bench.measured(run, "word_problems", PROBLEMS, by_level(PROBLEMS, HOW), **asked)


claim(
    Claim(
        id="open-rs",
        title="Open-RS",
        paper="arXiv:2503.16219",
        family="efficient-reasoning",
        says="A small model gains within few steps of GRPO. Easy questions mixed in improve its early performance over hard ones alone; a "
        "cosine of the length keeps answers short, and accuracy is no worse.",
        experiment="The embedded model on word problems, after a short SFT on worked answers with the last sum of each thought written up to "
        "five more times, in R1's form (tags on lines of their own). 20 steps of 6 answers to 8 questions, at most 64 tokens: the registered plan "
        "(every second question is easy, the others have three sums; cosine and form), the same without the cosine, and that without easy "
        "questions. Accuracy and tokens of one sampled answer to each of 300 held-out hard questions.",
        arms={
            "start": partial(trained, options=None),
            "hard alone": partial(trained, options=", easy=None, cosine=False"),
            "mixed": partial(trained, options=f", easy={EASY}, cosine=False"),
            "Open-RS": partial(trained, options=f", easy={EASY}"),
        },
        checks=(
            Check("more accurate than the start", "accuracy", "Open-RS", "start", margin=0.05),
            Check("the cosine keeps answers short", "length", "Open-RS", "mixed", margin=2.0, lower=True),
            Check("and is no less accurate", "accuracy", "Open-RS", "mixed", margin=-0.03),
            Check("mixing: better early on", "accuracy", "mixed", "hard alone"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("samples", arms=RL), Shared("updates", arms=RL), Shared("prompts", arms=RL)),
        tried="",
    ),
    __file__,
)
