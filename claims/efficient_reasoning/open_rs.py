"""Open-RS: a cosine of the length keeps the answers of a small model short at no loss, and easy questions mixed in help it on hard ones
early on."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.long_thoughts import by_level, rambling

EASY, HARD, ROUNDS, STEPS, PROMPTS, PROBLEMS = 2, 5, 2, 8, 8, 300
HOW = {"max_tokens": 64}


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
        "more times. 16 steps of 6 answers to 8 questions, at most 64 tokens: the registered plan (every second question has one or two sums, the "
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
        tried="",
    ),
    __file__,
)
