"""DR-PO: from resets into demonstrations PPO learns more than from the questions alone, at equal answers."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Measured, run_arm
from claims.machinery.claim import Check, Claim, Shared, claim
from posttrain.environments.task import task
from posttrain.environments.worked import Worked

TASK, LEVEL = "comparison", 5
HOW: dict[str, Any] = {"max_tokens": 96}
QUESTIONS, PROMPTS, EPOCHS, PROBLEMS = 256, 32, 2, 400


def reset(seed: int, beta: float, level: int = LEVEL) -> Measured:
    """The registered plan: a pass of SFT over 160 worked answers, then 25 steps of PPO, one answer to each of 32 questions a step."""
    return run_arm(
        seed, method=f"dr-po(questions={QUESTIONS}, epochs={EPOCHS}, beta={beta})", task=TASK, level=level, think=True,
        reward="task", prompts=PROMPTS, sampling=HOW, problems=PROBLEMS,
    )  # fmt: skip


def imitated(seed: int) -> Measured:
    """The pass of SFT alone."""
    return run_arm(
        seed, method="sft", env=Worked(task(TASK, level=LEVEL, think=True), QUESTIONS), task=TASK, level=LEVEL, think=True,
        steps=QUESTIONS // PROMPTS, prompts=PROMPTS, sampling=HOW, problems=PROBLEMS,
    )  # fmt: skip


claim(
    Claim(
        id="dr-po",
        title="DR-PO",
        paper="arXiv:2404.08495",
        family="policy-gradient",
        says="Starting rollouts from prefixes of offline answers instead of from the prompt alone lets policy optimisation reach "
        "more than PPO at the same number of samples.",
        experiment="The embedded model on countdown with four numbers, where one answer in ten is right at the start. A pass of SFT over 160 worked answers, "
        "then 25 steps of PPO on the task's grade, one answer to each of 32 of the same questions a step, by the registered plan (every answer begins inside a worked one), with "
        "half of the answers reset, and with none: plain PPO. Same demonstrations, questions, answers and updates. Accuracy from the question alone on 400 held-out problems.",
        arms={
            "DR-PO": partial(reset, beta=1.0),
            "PPO": partial(reset, beta=0.0),
            "SFT": imitated,
        },
        checks=(Check("better than PPO", "accuracy", "DR-PO", "PPO"),),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates"), Shared("written")),
        tried="",
    ),
    __file__,
)
