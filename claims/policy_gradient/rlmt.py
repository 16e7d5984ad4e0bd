"""RLMT: a thought that no one judges makes a better answer, for the same reward model and optimiser."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from posttrain.core.answers import final_answer
from posttrain.core.sampling import Sampling
from posttrain.environments.task import task

TASK, STEPS, PROMPTS, PROBLEMS = "instructions", 12, 8, 400
COMPARED, PAIRS = 500, 480
HOW: dict[str, Any] = {"max_tokens": 64}


def reward_model(bench: Bench) -> Path:
    """A registered reward model of 480 comparisons of the start's own answers, thoughts taken off, with and without a thought by turns:
    one that keeps to the instruction over one that does not."""
    rows = []
    for think in (True, False):
        env = task(TASK, think=think)
        prompts = [env.prompt(100_000 + 1000 * bench.seed + i) for i in range(COMPARED)]
        for prompt, some in zip(
            prompts, bench.policy(None).sample(prompts, 4, Sampling(**HOW), bench.seed, -1), strict=True
        ):
            said = [(env.grade(prompt, r.text), final_answer(r.text)) for r in some]
            right, wrong = ([a for g, a in said if a and g == want] for want in (1.0, 0.0))
            if right and wrong:
                rows.append({"prompt": prompt.last, "chosen": right[0], "rejected": wrong[0]})
    evenly = [rows[i * len(rows) // PAIRS] for i in range(PAIRS)]
    return bench.run("rm", method="reward-model", task=bench.rows("pairs", evenly), steps=60, prompts=16)


def trained(seed: int, think: bool, n: int = 8) -> Measured:
    """12 steps of n answers to each of 8 instructions, which the reward model judges without their thoughts."""
    with Bench(seed) as bench:
        before = bench.measured(None, TASK, PROBLEMS, think=think, sampling=HOW)
        model = str(reward_model(bench))
        run = bench.run(
            "rlmt", method=f"rlmt(steps={STEPS}, n={n})", task=TASK, reward=model, think=think, prompts=PROMPTS, sampling=HOW
        )  # fmt: skip
        after = bench.measured(run, TASK, PROBLEMS, think=think, sampling=HOW)
        after["gain"] = after["accuracy"] - before["accuracy"]
        return after


claim(
    Claim(
        id="rlmt",
        title="RLMT",
        paper="arXiv:2509.20357",
        family="policy-gradient",
        says="With the same prompts, reward model and optimiser, a model that thinks before it answers, and is judged by the answer "
        "alone, ends with better answers than one that answers at once.",
        experiment="The embedded model on short instructions about what to say and how, which it keeps about half of the time. A reward model of "
        "480 comparisons of the start's own answers, without their thoughts; then 12 steps of 8 answers to each of 8 prompts by the registered plan, "
        "with a thought asked for, without, and without with 14 answers, which are about as many tokens. Share of 400 held-out instructions that are kept to, "
        "which no arm is paid for; gain: over the same start asked in the same way.",
        arms={
            "thinking": partial(trained, think=True),
            "no thinking": partial(trained, think=False),
            "as many tokens": partial(trained, think=False, n=14),
        },
        checks=(
            Check("better answers", "accuracy", "thinking", "no thinking"),
            Check("also at as many tokens", "accuracy", "thinking", "as many tokens"),
            Check("training gains no less", "gain", "thinking", "no thinking", margin=-0.03),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("prompts"),
            Shared("updates"),
            Shared("samples", arms=("thinking", "no thinking")),
            Shared("tokens", within=0.4, arms=("thinking", "as many tokens")),
        ),
        tried="Attempt 1 trained lookup tables. On seed 100, after 12 steps: thinking 0.955, no thinking 0.89, as many tokens 0.94, gains 0.53, 0.46 "
        "and 0.50; after 7 steps, when all were still rising: 0.65, 0.66 and 0.72, gains 0.22, 0.23 and 0.28. The paper compares where training "
        "has ended, so it is 12. Margins are as they were.",
    ),
    __file__,
)
