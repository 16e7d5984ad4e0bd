"""PAR: a reward model's preference over a reference answer, which is bounded, is a safer aim for PPO than its raw score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from posttrain.core.method import find_method
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group
from posttrain.environments.task import task
from posttrain.evals.accuracy import answers, held_out
from posttrain.rewards.scorers.spec import build_scorer

TASK = "word_problems"
HOW: dict[str, Any] = {"max_tokens": 48}
COMPARED, PAIRS, STEPS, PROBLEMS = 1200, 480, 15, 400
ASKED = {"task": TASK, "prompts": 8, "think": True, "sampling": HOW}


def reward_model(bench: Bench) -> Path:
    """A registered reward model of 480 comparisons: of the start's own answers to a question a right one is preferred to a wrong one."""
    env = task(TASK, think=True)
    prompts = [env.prompt(100_000 + 1000 * bench.seed + i) for i in range(COMPARED)]
    made = bench.policy(None).sample(prompts, 4, Sampling(**HOW), bench.seed, -1)
    rows = []
    for prompt, some in zip(prompts, made, strict=True):
        right, wrong = ([r.text for r in some if env.grade(prompt, r.text) == g] for g in (1.0, 0.0))
        if right and wrong:
            rows.append({"prompt": prompt.content[0]["content"], "chosen": right[0], "rejected": wrong[0]})
    return bench.run("rm", method="reward-model", task=bench.rows("pairs", rows[:PAIRS]), steps=80, prompts=16)


def optimised(seed: int, shaped: bool) -> Measured:
    """15 steps of 8 answers to 8 fresh questions; what the reward model and what the truth say of held-out answers after."""
    with Bench(seed) as bench:
        model = str(reward_model(bench))
        if shaped:
            run = bench.run("par", method=f"par(steps={STEPS})", reward=model, **ASKED)
        else:
            raw = find_method("ppo").but(shaping="kl_in_reward(coef=0.005)")
            run = bench.run("raw", method=raw, reward=model, steps=STEPS, **ASKED)

        def proxy(policy: Policy, env: Environment) -> dict[str, float]:
            groups: list[Group] = answers(policy, env, held_out(env, 100, "test"), Sampling(**HOW))
            build_scorer(model, env).score(groups)
            return {"proxy": sum(r.total for g in groups for r in g.rollouts) / len(groups)}

        return bench.measured(run, TASK, PROBLEMS, proxy, think=True, sampling=HOW)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return bench.measured(None, TASK, PROBLEMS, think=True, sampling=HOW)


claim(
    Claim(
        id="par",
        title="PAR",
        paper="arXiv:2502.18770",
        family="reward-shaping-safety",
        says="PPO on sigmoid(r - r_ref), the reward model's preference for an answer over a reference answer, improves the true quality "
        "and is hacked less than PPO on the raw score r at the same KL price.",
        experiment="The embedded model on word problems. A reward model is trained on 480 comparisons of the start's own answers, right "
        "over wrong; then 15 steps of 64 answers by the registered plan, and by PPO on the raw score with the same KL price (0.005), "
        "critic, answers and updates. Accuracy, which neither sees, on 400 held-out problems.",
        arms={
            "PAR": lambda seed: optimised(seed, True),
            "raw score": lambda seed: optimised(seed, False),
            "start": start,
        },
        checks=(
            Check("better than the start", "accuracy", "PAR", "start", margin=0.05),
            Check("better than with the raw score", "accuracy", "PAR", "raw score", margin=0.02),
        ),
        seeds=tuple(range(60, 70)),
        level="pocket",
        shares=tuple(Shared(what, arms=("PAR", "raw score")) for what in ("prompts", "samples", "updates")),
        tried="Attempt 1 trained lookup tables and depended on stopping at 40 steps. On the embedded model, seed 100, a reward model of 145 "
        "comparisons was hacked by both within 30 steps: thoughts were left out, accuracy fell from 0.47 to 0.04 (PAR) and 0.14 (raw score). "
        "So comparisons are three times as many and steps half as many; margins were set before that was run on any seed.",
    ),
    __file__,
)
