"""Pairwise-RL: a judge that reads two answers, and PPO on winning against an anchor, do better than PPO on a scalar reward model."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.compared import HOW, TASK, comparisons, reward_model
from posttrain.core.method import find_method

PAIRS, PROMPTS, STEPS, PROBLEMS = 480, 16, 8, 400
ASKED = {"prompts": PROMPTS, "sampling": HOW}


def pairwise(seed: int, orders: str = "both") -> Measured:
    """The registered plan on 480 preferences: the judge learns them in three passes, PPO takes 8 steps on their questions."""
    with Bench(seed) as bench:
        pairs = bench.rows("pairs", comparisons(bench, PAIRS))
        epochs = STEPS * PROMPTS / PAIRS
        plan = f"pairwise-rl(pairs={pairs!r}, epochs={epochs}, orders={orders!r})"
        run = bench.run("run", method=plan, **ASKED)
        return bench.measured(run, TASK, PROBLEMS, think=True, sampling=HOW)


def scalar(seed: int) -> Measured:
    """A reward model of the same preferences in three passes, and the same PPO on its score, on the same questions."""
    with Bench(seed) as bench:
        rows = comparisons(bench, PAIRS)
        model = reward_model(bench, rows, steps=3 * PAIRS // PROMPTS)
        asked = bench.rows("questions", [{"question": row["prompt"]} for row in rows])
        run = bench.run("run", method=find_method("ppo"), task=asked, reward=str(model), steps=STEPS, **ASKED)
        return bench.measured(run, TASK, PROBLEMS, think=True, sampling=HOW)


claim(
    Claim(
        id="pairwise-rl",
        title="Pairwise-RL",
        paper="arXiv:2504.04950",
        family="policy-gradient",
        says="A judge trained on pairs and used on pairs, answer against anchor, asked in both orders, gives PPO a better reward than a scalar "
        "model of the same preferences.",
        experiment="The embedded model on word problems. 480 preferences between the start's own answers, right over wrong. The registered plan "
        "(the judge learns them by likelihood in both orders, PPO is paid the chance to win against the preferred answer), the same with the "
        "judge asked in one order, and the registered PPO on a Bradley-Terry model of the same preferences; 8 steps of 128 answers on the same "
        "questions, KL price 0.02 for all. Accuracy, which nobody is paid for, on 400 held-out problems.",
        arms={
            "Pairwise-RL": pairwise,
            "scalar reward model": scalar,
            "one order": partial(pairwise, orders="as given"),
        },
        checks=(
            Check("better than with a scalar model", "accuracy", "Pairwise-RL", "scalar reward model", margin=0.02),
            Check("both orders are no worse than one", "accuracy", "Pairwise-RL", "one order", margin=-0.03),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("samples"), Shared("updates")),
        tried="Attempts before this one trained lookup tables.",
    ),
    __file__,
)
