"""HuatuoGPT: a judge that is shown the right answer keeps RL from AI feedback to the facts; one that is not pays for style alone."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim

TASK, LEVEL, QUESTIONS = "word_problems", 3, 240
HOW: dict[str, Any] = {"max_tokens": 48}
ASKED: dict[str, Any] = {"task": TASK, "level": LEVEL, "think": True, "prompts": 8, "sampling": HOW}
# what is said well is worth up to 3 points by its length; what is true 5 more, which only a judge with the reference can tell: without it
# there is a guess in its place
JUDGE = """
import hashlib

from posttrain.core.answers import final_answer


def judge(prompt, text, aspect, reference):
    said = (final_answer(text) or "").strip()
    style = 3 * min(len(text), 60) / 60
    if reference is None:
        guess = hashlib.sha256(f"{prompt.id} {text}".encode()).digest()[0] / 255
        return round(style + 5 * guess)
    return round(style + 5 * (said == str(reference)))
"""


def learned(seed: int, reference: bool) -> Measured:
    """The registered plan without SFT: four answers to 240 questions, judged one by one, a reward model in two passes, PPO."""
    with Bench(seed) as bench:
        path = bench.folder / "judge_of_answers.py"
        path.write_text(JUDGE)
        plan = f"huatuogpt(warmup=0, prompts={QUESTIONS}, reference={reference}, passes=2, epochs=0.25)"
        run = bench.run("plan", method=plan, reward=f"{path}:judge", **ASKED)
        return bench.measured(run, TASK, 300, level=LEVEL, think=True, sampling=HOW)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return bench.measured(None, TASK, 300, level=LEVEL, think=True, sampling=HOW)


claim(
    Claim(
        id="huatuogpt",
        title="HuatuoGPT",
        paper="arXiv:2305.15075",
        family="preference",
        says="A judge that is shown the expert's answer as reference gives feedback whose reward model makes RL answer more truly; without the "
        "reference it does not.",
        experiment="The embedded model on word problems. A judge gives points for manner, and for truth only by the reference answer; without one it guesses. The registered "
        "plan (without its SFT on two sources): 240 questions with four answers judged one by one, a reward model, 16 steps of PPO; with and without the reference, as many questions to the judge, samples and updates. Accuracy on 300 held-out "
        "problems, which no arm is paid for.",
        arms={
            "with the reference": partial(learned, reference=True),
            "without": partial(learned, reference=False),
            "start": start,
        },
        checks=(
            Check("better than the start", "accuracy", "with the reference", "start", margin=0.05),
            Check("the reference helps", "accuracy", "with the reference", "without", margin=0.05),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(
            Shared("judge_calls", arms=("with the reference", "without")),
            Shared("samples", arms=("with the reference", "without")),
            Shared("updates", arms=("with the reference", "without")),
        ),
        tried="On seed 100 with arithmetic, 120 questions and as many steps of PPO the arm with the reference had 0.37 right, fewer than the start's 0.46: a reward model of this "
        "size does not learn to tell right results of sums from wrong ones, so that the design could show nothing. Hence word problems, where the usual mistake is seen in the "
        "thought, and twice the questions: 0.58 on seed 100, 0.05 without the reference, and the start has 0.48. Checks and margins are as they were.",
    ),
    __file__,
)
