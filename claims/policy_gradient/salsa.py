"""SALSA: PPO held near the average of two fine-tunings ends better than PPO held near one of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.people import demonstrations, written_comparisons

TASK, LEVEL, CARE = "word_problems", 3, 0.5
HOW: dict[str, Any] = {"max_tokens": 48}
SHOWN, COMPARED, PROMPTS, EPOCHS, PROBLEMS = 240, 2400, 8, 0.5, 400


def aligned(seed: int, alpha: float, warmup: float = 1, beta: float = 0.02) -> Measured:
    """The registered plan: two SFTs of 240 demonstrations, a reward model, PPO on 8 answers to each of 8 questions a step."""
    with Bench(seed) as bench:
        pairs = bench.rows("pairs", written_comparisons(TASK, LEVEL, seed, COMPARED, CARE))
        shown = bench.rows("shown", demonstrations(TASK, LEVEL, seed, SHOWN, CARE))
        plan = f"salsa(pairs={pairs!r}, warmup={warmup}, epochs={EPOCHS}, alpha={alpha}, beta={beta})"
        run = bench.run("salsa", method=plan, task=shown, prompts=PROMPTS, sampling=HOW)
        made = bench.measured(run, TASK, PROBLEMS, level=LEVEL, think=True, sampling=HOW)
        paid = bench.curves["salsa"]["ppo"]["reward"]
        made["proxy"] = sum(paid[-3:]) / 3
        return made


claim(
    Claim(
        id="salsa",
        title="SALSA",
        paper="arXiv:2411.01798",
        family="policy-gradient",
        says="With the average of two fine-tunings as its reference instead of one of them, PPO reaches more reward and better answers "
        "at the same KL price.",
        experiment="The embedded model on word problems. Two fine-tunings on the same 240 demonstrations, half of them wrong, in another order; a "
        "reward model of some 600 comparisons with which a quarter of people disagree; 15 steps of PPO from the first fine-tuning on 64 answers, by the registered plan, and with its reference taken "
        "back to the first fine-tuning (alpha=1): same data, answers and updates. As the average has seen twice the updates, a third arm "
        "takes one fine-tuning of twice the length as start and reference. Accuracy, which no arm sees, on 400 held-out problems.",
        arms={
            "SALSA": partial(aligned, alpha=0.5),
            "near one": partial(aligned, alpha=1.0),
            "SALSA, KL 0.2": partial(aligned, alpha=0.5, beta=0.2),
            "near one, KL 0.2": partial(aligned, alpha=1.0, beta=0.2),
            "near one of twice the length": partial(aligned, alpha=1.0, beta=0.2, warmup=2),
        },
        checks=(
            Check("better than near one fine-tuning", "accuracy", "SALSA", "near one"),
            Check("better than near one of twice the length", "accuracy", "SALSA", "near one of twice the length"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates", arms=("SALSA", "near one"))),
        tried="",
    ),
    __file__,
)
