"""DR-PO: from resets into demonstrations PPO learns more than from the questions alone, at equal answers."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.people import demonstrations, written_comparisons

TASK, LEVEL, CARE = "word_problems", 3, 0.5
HOW: dict[str, Any] = {"max_tokens": 48}
SHOWN, COMPARED, PROMPTS, EPOCHS, PROBLEMS = 480, 4800, 32, 1.5, 400


def reset(seed: int, beta: float) -> Measured:
    """The registered plan: a pass of SFT and of the reward model, then 20 steps of PPO, one answer to each of 32 questions a step."""
    with Bench(seed) as bench:
        pairs = bench.rows("pairs", written_comparisons(TASK, LEVEL, seed, COMPARED, CARE))
        shown = bench.rows("shown", demonstrations(TASK, LEVEL, seed, SHOWN, CARE))
        plan = f"dr-po(pairs={pairs!r}, epochs={EPOCHS}, beta={beta})"
        run = bench.run("plan", method=plan, task=shown, prompts=PROMPTS, sampling=HOW)
        return bench.measured(run, TASK, PROBLEMS, level=LEVEL, think=True, sampling=HOW)


claim(
    Claim(
        id="dr-po",
        title="DR-PO",
        paper="arXiv:2404.08495",
        family="policy-gradient",
        says="Starting rollouts from prefixes of offline answers instead of from the prompt alone lets policy optimisation reach "
        "more than PPO at the same number of samples.",
        experiment="The embedded model on word problems. 480 answers that people wrote, half of them wrong, and some 2,400 comparisons with which one in "
        "ten disagrees. The registered plan: a pass of SFT over the answers and of a reward model over the comparisons, then 20 steps of "
        "PPO, one answer to each of 32 of the same questions, each begun inside a written answer; and the same without resets (beta=0), which is PPO: same "
        "data, answers and updates. Accuracy from the question alone, which no arm sees, on 400 held-out problems.",
        arms={"DR-PO": partial(reset, beta=1.0), "PPO": partial(reset, beta=0.0)},
        checks=(Check("better than PPO", "accuracy", "DR-PO", "PPO"),),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates"), Shared("written")),
        tried="Attempt 1 trained lookup tables that had not imitated the demonstrations. On the embedded model, seed 100, with the task's grade as reward and no reward model: countdown with four numbers, "
        "25 steps after SFT on 160 worked answers: DR-PO 0.09, half of the answers reset 0.10, PPO 0.09; comparison of sums, 16 steps after 256: 0.24, PPO 0.27, SFT alone 0.29. "
        "One answer per question and a critic that knows nothing learn too little from a rare reward, with and without resets. So it is the paper's own pipeline now, in which "
        "the critic begins as the reward model. There, seed 100: DR-PO 0.74 of 300 problems; PPO with the same data and sizes (the arm of summarize-hf) 0.82 of 400. It is not expected to be shown.",
    ),
    __file__,
)
