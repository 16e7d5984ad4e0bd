"""A-LoL: learning from the logged answers that are better than expected beats imitating the log, and beats weighing it by reward alone."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.people import answer, questions
from posttrain.core import rng
from posttrain.environments.school import school

TASK, LEVEL, CARE = "word_problems", 3, 0.4
HOW: dict[str, Any] = {"max_tokens": 48}
LOGGED, PROMPTS, PROBLEMS = 400, 16, 400
STEPS = 22  # of the 360 answers that are trained on, once
RIGHT, WRONG, NOISE = 0.8, 0.5, 0.1  # what a judge gives, on average and up or down from it


def log(seed: int) -> list[dict[str, Any]]:
    """Answers of people who are right four times in ten, each with the grade of a lenient judge."""
    env, rows = school(TASK, LEVEL), []
    for i, p in questions(TASK, LEVEL, seed, LOGGED, "logged"):
        text = answer(TASK, LEVEL, i, CARE, seed)
        noise = rng.python("judge", seed, i).uniform(-NOISE, NOISE)
        rows.append(
            {"prompt": p.last, "response": text, "reward": (RIGHT if env.grade(p, text) == 1 else WRONG) + noise}
        )
    return rows


def measured(bench: Bench, run: Any) -> Measured:
    return bench.measured(run, TASK, PROBLEMS, level=LEVEL, think=True, sampling=HOW)


def by_plan(seed: int, variant: str) -> Measured:
    """The registered plan; fewer rows are kept by advantage than by reward, and come more often in as many updates."""
    with Bench(seed) as bench:
        plan = f"a-lol(variant={variant!r}, steps={STEPS})"
        task = bench.rows("log", log(seed))
        return measured(bench, bench.run("plan", method=plan, task=task, prompts=PROMPTS, eval_problems=0))


def by_imitation(seed: int) -> Measured:
    with Bench(seed) as bench:
        task = bench.rows("log", log(seed))
        return measured(bench, bench.run("sft", method="sft", task=task, prompts=PROMPTS, steps=STEPS, eval_problems=0))


claim(
    Claim(
        id="a-lol",
        title="A-LoL",
        paper="arXiv:2305.14718",
        family="supervised-from-reward",
        says="With logged answers of mixed worth, the advantage over the reference's value, as a filter and as a weight, gives a better policy than imitation of "
        "the log and than the reward itself as the weight (R-LoL).",
        experiment="The embedded model on word problems with a chain of thought; 400 logged answers of which four in ten are right, each with a lenient judge's grade: "
        "0.8 where it is right, 0.5 where it is wrong, and noise. The registered plan (values from held-out rows of the log), the same as R-LoL, plain imitation; each in "
        "22 updates of 16 answers. Accuracy of one sampled answer to each of 400 held-out problems, which no arm is trained on.",
        arms={
            "A-LoL": partial(by_plan, variant="a-lol"),
            "R-LoL": partial(by_plan, variant="r-lol"),
            "imitation": by_imitation,
        },
        checks=(
            Check("better than imitation", "accuracy", "A-LoL", "imitation", margin=0.1),
            Check("better than the reward as a weight", "accuracy", "A-LoL", "R-LoL", margin=0.05),
        ),
        seeds=tuple(range(210, 222)),
        level="pocket",
        shares=(Shared("updates"), Shared("written")),
        tried="On seed 100, as it stands: 0.97 (A-LoL, in 31 updates), 0.70 (R-LoL), 0.51 (imitation). "
        "The seeds 200-209 were run so and not recorded, nor looked at: how many answers are kept differs by seed, and with it the updates differed by more than a "
        "quarter. Hence as many updates for all, and new seeds.",
    ),
    __file__,
)
