"""AutoRule: rules read off the reasons for preferences, beside a reward model, end better than the reward model alone."""

from __future__ import annotations

import math
import os
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.reasons import reply, worth
from claims.worlds.service import chatting
from posttrain.core import rng
from posttrain.core.method import find_method
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.environments.task import task
from posttrain.evals.accuracy import answers, held_out

TASK, PAIRS, STEPS, PROBLEMS, SHARP = "instructions", 256, 15, 300, 8.0
HOW: dict[str, Any] = {"max_tokens": 32}
ASKED: dict[str, Any] = {"task": TASK, "prompts": 8, "level": 1, "think": False, "sampling": HOW}


def preferred(bench: Bench) -> str:
    """256 pairs of the start's own answers; which is preferred is drawn from how much better it truly is."""
    env, draw = task(TASK, level=1, think=False), rng.python("autorule", bench.seed)
    prompts = [env.prompt(100_000 + 1000 * bench.seed + i) for i in range(PAIRS)]
    rows = []
    for p, made in zip(prompts, bench.policy(None).sample(prompts, 2, Sampling(**HOW), bench.seed, -1), strict=True):
        a, b = (r.text for r in made)
        first = draw.random() < 1 / (1 + math.exp(-SHARP * (worth(p.last, a) - worth(p.last, b))))
        chosen, rejected = (a, b) if first else (b, a)
        if a != b:
            rows.append({"prompt": p.last, "chosen": chosen, "rejected": rejected})
    return bench.rows("pairs", rows)


def true_worth(policy: Policy, env: Environment) -> dict[str, float]:
    made = answers(policy, env, held_out(env, PROBLEMS, "test"), Sampling(**HOW))
    return {"worth": fmean(worth(g.prompt.last, r.text) for g in made for r in g.rollouts)}


def trained(seed: int, rules: bool, model: bool) -> Measured:
    """A reward model of the pairs, rules of the same pairs, or both; then 15 steps of 64 answers."""
    with Bench(seed) as bench, chatting(reply) as url, patch.dict(os.environ, {"POSTTRAIN_CACHE": str(bench.folder)}):
        pairs = preferred(bench)
        judge = bench.once("rm", method="reward-model", task=pairs, steps=48, prompts=16) if model else Path()
        asked = ASKED | ({"reward": str(judge)} if model else {})
        if rules:
            run = bench.run("rules", method=f"autorule(served='{url}', pairs='{pairs}', steps={STEPS})", **asked)
        else:
            alone = find_method("grpo").but(shaping="kl_in_reward(coef=0.01)", terms=())
            run = bench.run("alone", method=alone, steps=STEPS, **asked)
        return bench.measured(run, TASK, PROBLEMS, true_worth, level=1, think=False, sampling=HOW)


claim(
    Claim(
        id="autorule",
        title="AutoRule",
        paper="arXiv:2506.15651",
        family="reward-shaping-safety",
        says="GRPO on the share of automatically extracted rules that an answer keeps, beside the reward model, ends better than on the "
        "reward model alone.",
        experiment="The embedded model on short requests; an answer is truly worth the share of four hidden properties that it has. 256 "
        "comparisons of the start's own answers, drawn from that. The registered plan reads rules off them by a served program that says "
        "what tells the two answers apart (one statement in five made up, 12 statements in all, the 6 commonest kept) and verifies them; a "
        "reward model is trained on the same pairs. 15 steps of 64 answers: rules with 0.3 of the model, the model alone at the same KL "
        "price, rules alone. worth: of one answer to each of 300 other requests, which none is paid for.",
        arms={
            "rules and model": lambda seed: trained(seed, rules=True, model=True),
            "model": lambda seed: trained(seed, rules=False, model=True),
            "rules": lambda seed: trained(seed, rules=True, model=False),
        },
        checks=(
            Check("better than the model alone", "worth", "rules and model", "model", margin=0.03),
            Check("the model takes nothing from the rules", "worth", "rules and model", "rules", margin=-0.03),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="Attempt 1 trained lookup tables against a reward model that was made to like a worthless letter. On the embedded model, seed "
        "100: worth 0.780 with rules and model, 0.716 with the model, 0.775 with rules, after 15 steps; 0.744 with the model after 20. The steps were cut "
        "to 15 for time; margins stand as they were written before. The program names true reasons more often than a language model "
        "would, and its verifier never errs. Rules cost no samples, but 6 requests for each answer.",
    ),
    __file__,
)
