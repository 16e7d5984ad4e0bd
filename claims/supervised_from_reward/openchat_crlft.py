"""OpenChat: told who wrote each answer, and weighing them so, a model learns more from mixed answers than from all alike."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.people import demonstrations
from posttrain.core.conditioning import Classes, Wanted
from posttrain.core.protocols import Environment
from posttrain.core.sampling import Sampling
from posttrain.evals.accuracy import accuracy

TASK, LEVEL = "word_problems", 3
HOW: dict[str, Any] = {"max_tokens": 48}
GOOD, POOR = (60, 1.0), (540, 0.2)  # answers, and how often they are right
PROMPTS, EPOCHS, PROBLEMS = 32, 4, 400
CLASSES = Classes(("expert", "web"))
STEPS = EPOCHS * (GOOD[0] + POOR[0]) // PROMPTS


def answered(seed: int) -> dict[str, list[dict[str, Any]]]:
    """Different questions, of careful people and of careless ones; one more is held out, so that all others are trained on."""
    count, first = GOOD[0] + POOR[0], GOOD[0]
    good = [r | {"class": "expert"} for r in demonstrations(TASK, LEVEL, seed, count + 1, GOOD[1])]
    other = [r | {"class": "web"} for r in demonstrations(TASK, LEVEL, seed, count, POOR[1])]
    return {"train": good[:first] + other[first:], "test": good[count:]}


def by_class(seed: int, prefer: str = "expert") -> Measured:
    """The registered plan, and the class that its policy is asked for."""

    def asked(policy: Any, env: Environment) -> dict[str, float]:
        policy.wanted = Wanted(CLASSES, CLASSES.asked(prefer))
        return {"right": accuracy(policy, env, PROBLEMS, Sampling(**HOW)).accuracy}

    with Bench(seed) as bench:
        plan = f"openchat-crlft(epochs={EPOCHS})"
        run = bench.run("plan", method=plan, task=answered(seed), prompts=PROMPTS, eval_problems=0)
        return bench.measured(run, TASK, 20, asked, level=LEVEL, think=True, sampling=HOW)


def alike(seed: int) -> Measured:
    """Plain imitation of all rows."""

    def asked(policy: Any, env: Environment) -> dict[str, float]:
        return {"right": accuracy(policy, env, PROBLEMS, Sampling(**HOW)).accuracy}

    with Bench(seed) as bench:
        run = bench.run("sft", method="sft", task=answered(seed), prompts=PROMPTS, steps=STEPS, eval_problems=0)
        return bench.measured(run, TASK, 20, asked, level=LEVEL, think=True, sampling=HOW)


claim(
    Claim(
        id="openchat-crlft",
        title="OpenChat (C-RLFT)",
        paper="arXiv:2309.11235",
        family="supervised-from-reward",
        says="Of few expert and many poor answers, imitation that is told the class of each and weighs it, asked for the expert class, learns more than imitation of all alike; "
        "and it is the class it is asked for that does it.",
        experiment="The embedded model on word problems with a chain of thought: 60 answers of people who are always right, 540 of people who are right one time in five. The registered "
        "plan in 4 passes, its policy asked for the expert class and for the other one; plain imitation of all 600 in as many updates. Accuracy of one sampled answer to each of "
        "400 held-out problems.",
        arms={"C-RLFT": by_class, "the other class": partial(by_class, prefer="web"), "all alike": alike},
        checks=(
            Check("better than all alike", "right", "C-RLFT", "all alike", margin=0.15),
            Check("it does as it is asked", "right", "C-RLFT", "the other class", margin=0.15),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("updates", within=0.05), Shared("written", within=0.05)),
        tried="The paper also finds it better than imitation of the expert answers alone, which did not come out here and is not a check: on seed 100 accuracy was 0.63 (C-RLFT), 0.26 (all "
        "alike) and 0.97 (the 60 expert answers alone, as many updates). The model can do the task, so that 60 good answers are enough and poor ones have nothing to teach. With 10 expert answers and 590 that are right four times in "
        "ten: 0.49, 0.42, 0.70. With 30 and 570 whose results everybody spells digit by digit, which the model has never seen: 0.19, 0.14, 0.15 spelled the right number. The "
        "arm of the other class was not tried.",
    ),
    __file__,
)
