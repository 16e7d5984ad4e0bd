"""UltraFeedback: a reward model of points in four aspects, given to answers shown together, is better than one of a single overall score."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import fmean

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import ASKED, HOW, oracle, requests
from posttrain.core.sampling import Sampling
from posttrain.environments.language.courtesy import utility
from posttrain.evals.accuracy import answers, held_out
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.runs.saved import load_reward_model

PROMPTS, PASSES, ANSWERS = 160, 2, 16
FAULTS: dict[str, float] = {"noise": 0.5, "shared": 1.0}


def best(bench: Bench, run: Path | None) -> dict[str, float]:
    """Of 16 answers of the start to each of 100 held-out requests: the taste of the one that the reward model likes best, and how often it
    is right about two of them; of the start the first of the 16."""
    env, policy = requests(), bench.policy(None)
    groups = answers(policy, env, held_out(env, 100, "test"), Sampling(**HOW), ANSWERS)
    worth = [[utility(g.prompt, r.text) for r in g.rollouts] for g in groups]
    if run is None:
        return {"best of 16": fmean(row[0] for row in worth), "pairs right": 0.5}
    model = RewardModel(load_reward_model(run))
    liked = [model.scores(g.rollouts).tolist() for g in groups]
    top = [max(zip(s, w, strict=True))[1] for s, w in zip(liked, worth, strict=True)]
    right = [
        float((s[i] > s[i + 1]) == (w[i] > w[i + 1]))
        for s, w in zip(liked, worth, strict=True)
        for i in range(0, ANSWERS, 2)
        if abs(w[i] - w[i + 1]) > 0.1
    ]
    return {"best of 16": fmean(top), "pairs right": fmean(right)}


def modelled(seed: int, scores: str) -> Measured:
    """The registered plan up to its reward model: four answers to 160 requests, four questions to the judge for each."""
    with Bench(seed) as bench:
        plan = (
            f"ultrafeedback(prompts={PROMPTS}, scores={scores!r}, epochs={PASSES}, best_n=0, steps=0, principles=False)"
        )
        judge = oracle(bench, **FAULTS)
        run = bench.run("plan", method=plan, reward=judge, **ASKED)
        return Measured(best(bench, run), bench.tally.spent(), bench.curves)


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return Measured(best(bench, None), bench.tally.spent(), bench.curves)


claim(
    Claim(
        id="ultrafeedback",
        title="UltraFeedback",
        paper="arXiv:2310.01377",
        family="preference",
        says="A reward model trained on points in four aspects, which a judge gives to all answers to an instruction together, chooses well among "
        "16 answers, and better than one trained on an overall score that is given to one answer at a time.",
        experiment="The embedded model answers 160 small requests four times. A judge that knows a hidden taste, with noise of each answer and aspect "
        "and a bias that all answers of one question share, gives points in four aspects to the four together, or one overall score to each alone: four questions an instruction in both arms. "
        "The registered plan makes all pairs and a reward model in two passes (without PPO and principles). best of 16: the taste of the answer that the reward model "
        "likes best, of the start's answers to 100 held-out requests; pairs right: how often the taste agrees with it.",
        arms={
            "four aspects together": partial(modelled, scores="aspects"),
            "overall, one by one": partial(modelled, scores="overall"),
            "start": start,
        },
        checks=(
            Check("best of 16 beats the first", "best of 16", "four aspects together", "start", margin=0.15),
            Check(
                "its reward model is right more often", "pairs right", "four aspects together", "overall, one by one"
            ),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("judge_calls", arms=("four aspects together", "overall, one by one")),),
        tried="Seed 100: best of 16 is 1.24 with four aspects, 1.12 with overall scores, -0.46 at the start; pairs right 0.877 and 0.849.",
    ),
    __file__,
)
