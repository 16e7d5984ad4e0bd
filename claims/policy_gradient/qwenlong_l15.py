"""QwenLong-L1.5: credit in each task's own spread, and blame gated by entropy, on tasks whose rewards differ in scale."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.machinery.figures import entropy, sampled
from posttrain.core.method import find_method
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.environments.task import task
from posttrain.evals.accuracy import accuracy

TASKS, SMALL = "word_problems + counting", "counting"
STEPS, PROMPTS, PROBLEMS = 12, 16, 400
HOW: dict[str, Any] = {"max_tokens": 48}
AEPO = "aepo(low=0.02, high=0.04)"  # around the start's 0.045 nats
# what a right answer earns in each task, as of graders with scales of their own
REWARD = """
def graded(prompt, text):
    right = text.rpartition("</think>")[2].strip() == prompt.answer and "</think>" in text
    return float(right) * (0.05 if prompt.info["task"] == "counting" else 1.0)
"""


def trained(seed: int, advantage: str) -> Measured:
    """12 steps of 8 answers to each of 8 prompts of each task; accuracy of all, and of the task of small rewards."""

    def further(policy: Policy, env: Environment) -> dict[str, float]:
        small = accuracy(policy, task(SMALL, think=True), PROBLEMS // 2, Sampling(**HOW))
        return {"small": small.accuracy, **sampled({"entropy": entropy}, Sampling(**HOW))(policy, env)}

    with Bench(seed) as bench:
        file = bench.folder / "graders.py"
        file.write_text(REWARD)
        asked: dict[str, Any] = {"task": TASKS, "think": True, "prompts": PROMPTS, "sampling": HOW, "steps": STEPS}
        method = find_method("qwenlong-l15").but(advantage=advantage)
        run = bench.run("run", method=method, reward=f"{file}:graded", **asked)
        return bench.measured(run, TASKS, PROBLEMS, further, think=True, sampling=HOW)


claim(
    Claim(
        id="qwenlong-l15",
        title="QwenLong-L1.5 (AEPO)",
        paper="arXiv:2512.12967",
        family="policy-gradient",
        says="With tasks of many kinds in one batch, credit in the spread of each task's rewards learns all of them; and leaving blame out "
        "while the policy is undecided (AEPO) ends higher than the same without the gate.",
        experiment="The embedded model on word problems and counting with a written chain of thought, each about half right at the start, as many "
        "prompts of each, the second paid by a grader whose scale is 20 times smaller. 12 steps of 128 answers: the registered method with the band "
        "0.02 to 0.04 around the start's 0.045 nats, the same without a gate, with the group's spread (GRPO) and with the batch's; same prompts, "
        "answers and updates. Accuracy of one sampled answer to each of 400 held-out problems, and of 200 of the small task.",
        arms={
            "AEPO": partial(trained, advantage=AEPO),
            "no gate": partial(trained, advantage="aepo(low=0.0, high=1e9)"),
            "group std": partial(trained, advantage="grpo"),
            "batch std": partial(trained, advantage="lite_ppo"),
        },
        checks=(
            Check("a task of small rewards is learned too", "small", "AEPO", "batch std", margin=0.05),
            Check("better than without the gate", "accuracy", "AEPO", "no gate"),
            Check("no worse than the group's spread", "accuracy", "AEPO", "group std", margin=-0.03),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="Attempt 1 trained lookup tables. Seed 100: accuracy 0.70 with AEPO, 0.73 without a gate, 0.76 with the group's spread, 0.71 with the "
        "batch's; of the small task 0.78, 0.84, 0.86 and 0.67; entropy 0.050, 0.038, 0.040 and 0.037. Blame was left out all along: praise alone "
        "does not lower the entropy here, so no band would bring it back. Nothing was changed after it.",
    ),
    __file__,
)
