"""Comparisons of the embedded model's own answers to word problems, and the reward model that they make: for claims about learned rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from claims.machinery.arms import Bench, Further
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.task import task
from posttrain.evals.accuracy import answers, held_out
from posttrain.rewards.scorers.spec import build_scorer

TASK = "word_problems"
HOW: dict[str, Any] = {"max_tokens": 48}
ASKED: dict[str, Any] = {"task": TASK, "think": True, "sampling": HOW}


def answered(bench: Bench, questions: int, n: int) -> list[tuple[Prompt, list[Rollout]]]:
    """n answers of the start to each of so many questions that no arm meets otherwise."""
    env = task(TASK, think=True)
    prompts = [env.prompt(100_000 + 1000 * bench.seed + i) for i in range(questions)]
    return list(zip(prompts, bench.policy(None).sample(prompts, n, Sampling(**HOW), bench.seed, -1), strict=True))


def comparisons(bench: Bench, pairs: int, questions: int = 1200) -> list[dict[str, Any]]:
    """Of the start's own answers to a question a right one is preferred to a wrong one."""
    env, rows = task(TASK, think=True), []
    for prompt, some in answered(bench, questions, 4):
        right, wrong = ([r.text for r in some if env.grade(prompt, r.text) == g] for g in (1.0, 0.0))
        if right and wrong:
            rows.append({"prompt": prompt.content[0]["content"], "chosen": right[0], "rejected": wrong[0]})
    return rows[:pairs]


def reward_model(bench: Bench, rows: list[dict[str, Any]], steps: int = 80) -> Path:
    """The registered reward model, so many updates on 16 of these pairs each."""
    return bench.run("rm", method="reward-model", task=bench.rows("pairs", rows), steps=steps, prompts=16)


def proxy(model: Path, problems: int = 100) -> Further:
    """What a reward model says of held-out answers, on average."""

    def further(policy: Policy, env: Environment) -> dict[str, float]:
        groups: list[Group] = answers(policy, env, held_out(env, problems, "test"), Sampling(**HOW))
        build_scorer(str(model), env).score(groups)
        return {"proxy": sum(r.total for g in groups for r in g.rollouts) / len(groups)}

    return further
