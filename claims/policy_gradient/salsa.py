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


def aligned(seed: int, alpha: float, warmup: float = 1) -> Measured:
    """The registered plan: two SFTs of 240 demonstrations, a reward model, PPO on 8 answers to each of 8 questions a step."""
    with Bench(seed) as bench:
        pairs = bench.rows("pairs", written_comparisons(TASK, LEVEL, seed, COMPARED, CARE))
        shown = bench.rows("shown", demonstrations(TASK, LEVEL, seed, SHOWN, CARE))
        plan = f"salsa(pairs={pairs!r}, warmup={warmup}, epochs={EPOCHS}, alpha={alpha})"
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
        "reward model of some 1,200 comparisons with which one person in ten disagrees; 13 steps of PPO from the first fine-tuning on 64 answers, by "
        "the registered plan, and with its reference taken back to the first fine-tuning (alpha=1): same data, answers and updates. As the average "
        "has seen twice the updates, a third arm has one fine-tuning of twice the length as start and reference. Accuracy, which no arm sees, on "
        "400 held-out problems; proxy: what the reward model pays in the last three steps.",
        arms={
            "SALSA": partial(aligned, alpha=0.5),
            "near one": partial(aligned, alpha=1.0),
            "near one of twice the length": partial(aligned, alpha=1.0, warmup=2),
        },
        checks=(
            Check("better than near one fine-tuning", "accuracy", "SALSA", "near one", margin=0.02),
            Check("better than near one of twice the length", "accuracy", "SALSA", "near one of twice the length"),
        ),
        seeds=tuple(range(212, 228)),
        level="pocket",
        shares=(Shared("prompts", within=0.05), Shared("samples"), Shared("updates", arms=("SALSA", "near one"))),
        tried="Attempt 1 trained lookup tables, in which the average had seen twice the data. On the embedded model, seed 100, KL price 0.02 (the plan's): "
        "SALSA 0.76, near one 0.58; at 0.2 it was 0.81, 0.85, and 0.70 near one of twice the length: there the average is no gain, so what is checked holds "
        "for the plan's own price at most. With 520 comparisons, a quarter of them against the right answer, the reward model was bad and all "
        "arms were hacked: 0.35, 0.25, 0.56 (twice the length) at 0.02, 0.70 and 0.60 at 0.2. Margins were set after these. The seeds 200-211 were run and not recorded, "
        "nor looked at: different prompts were to be equal to the last one, and phases draw a few others. Hence an allowance of a twentieth, and new seeds.",
    ),
    __file__,
)
