"""Open-RS: a cosine of the length keeps the answers of a small model short at no loss, and easy questions mixed in help it on hard ones
early on."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.long_thoughts import by_level, rambling

EASY, HARD, ROUNDS, STEPS, PROMPTS, PROBLEMS = 2, 5, 2, 8, 8, 300
HOW = {"max_tokens": 96}


def trained(seed: int, options: str) -> Measured:
    """2 rounds of 8 steps, 6 answers to each of 8 questions, from the rambling start; then one sampled answer to each of 300 held-out hard questions."""
    asked: dict[str, Any] = {"level": HARD, "think": True, "sampling": HOW}
    with Bench(seed) as bench:
        plan = f"open-rs(rounds={ROUNDS}, steps={STEPS}{options})"
        run = bench.run("rl", method=plan, model=str(rambling(bench)), task="word_problems", prompts=PROMPTS, **asked)
        return bench.measured(run, "word_problems", PROBLEMS, by_level(PROBLEMS, HOW), **asked)


claim(
    Claim(
        id="open-rs",
        title="Open-RS",
        paper="arXiv:2503.16219",
        family="efficient-reasoning",
        says="Easy questions mixed in improve the early performance of a small model over hard ones alone; a "
        "cosine of the length keeps answers short, and accuracy is no worse.",
        experiment="The embedded model on word problems, after a short SFT on worked answers with the last sum of each thought written up to five "
        "more times. 16 steps of 6 answers to 8 questions, at most 96 tokens: the registered plan (every second question has one or two sums, the "
        "others three; cosine and form), the same without the cosine, and that without easy questions. Accuracy and tokens of one sampled "
        "answer to each of 300 held-out hard questions. The embedded model writes no new lines, so the form pays nobody.",
        arms={
            "hard alone": partial(trained, options=", easy=None, cosine=False"),
            "mixed": partial(trained, options=f", easy={EASY}, cosine=False"),
            "Open-RS": partial(trained, options=f", easy={EASY}"),
        },
        checks=(
            Check("the cosine keeps answers short", "length", "Open-RS", "mixed", margin=2.0, lower=True),
            Check("and is no less accurate", "accuracy", "Open-RS", "mixed", margin=-0.03),
            Check("mixing: better early on", "accuracy", "mixed", "hard alone"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="Attempt 1 trained lookup tables. Trials were on seed 100. After only 30 or 40 updates of SFT the start was right in 0.1 to 0.4 "
        "and what it repeated was often wrong, so that training on right or wrong alone took the repetitions out; with 80 it is right in "
        "0.63 at 41 tokens, and is used here. A start in R1's form, tags on lines of their own, was tried first: the embedded model never "
        "saw a new line, and was right in 0.00 after 40 updates and 0.03 after 100, so the form is left to the plan as it is and pays "
        "nobody. "
        "In a window of 64, seed 100, answers without the cosine came down to 31 tokens by themselves, which is all that three sums take, and were right in 0.64 (with it 31.5 and 0.57); so the window is 96, "
        "which was not tried. The margin of 2 tokens is a twentieth of the start's length. That hard questions alone fall after their peak, within hundreds of steps, "
        "is not tested.",
    ),
    __file__,
)
