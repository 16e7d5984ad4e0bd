"""SuperHF: under a KL prior the imitation of the best of 16 hacks a reward model less, and leaves answers more varied."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from pathlib import Path

from claims.machinery.arms import Bench, Further, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.supervised_from_reward.raft import judged
from claims.worlds.courtesy import ASKED, HOW, comparisons, passes
from posttrain.core.method import Method, find_method
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Rollout
from posttrain.evals.accuracy import answers, held_out
from posttrain.evals.diversity import ngrams
from posttrain.evals.kl import kl_of

PAIRS, NOISE, LONGER, PASSES, STEPS, PROMPTS, COMPARED = 100, 0.1, 0.5, 10, 40, 4, 60
REGISTERED = "superhf"


def similarity(answers: list[Rollout]) -> float:
    """How alike answers to different questions are: the F-score of the token pairs that two of them share, on average over all twos."""
    pairs = [set(ngrams(r.actions.tolist(), 2)) for r in answers if len(r) > 1]
    found = [2 * len(a & b) / (len(a) + len(b)) for a, b in combinations(pairs, 2)]
    return sum(found) / max(len(found), 1)


def further(bench: Bench, model: Path) -> Further:
    def look(policy: Policy, env: Environment) -> dict[str, float]:
        made = [
            r for g in answers(policy, env, held_out(env, COMPARED, "test"), Sampling(**HOW), 2) for r in g.rollouts
        ]
        alike = [similarity(made[i::2]) for i in (0, 1)]
        moved, _ = kl_of(policy, bench.policy(None), made)
        return {**judged(model)(policy, env), "similarity": sum(alike) / 2, "kl": moved}

    return look


def trained(seed: int, method: str | Method) -> Measured:
    """40 steps of 16 answers to 4 requests, one update each, against a reward model of few comparisons."""
    with Bench(seed) as bench:
        pairs = comparisons(bench, PAIRS, NOISE, bias=LONGER)
        model = bench.run("rm", method="reward-model", task=pairs, **passes(pairs, PASSES, 16))
        run = bench.run("run", method=method, reward=str(model), **ASKED | {"steps": STEPS, "prompts": PROMPTS})
        look = further(bench, model)
        return bench.measured(run, "instructions", 200, look, level=1, think=False, sampling=HOW)


claim(
    Claim(
        id="superhf",
        title="SuperHF",
        paper="arXiv:2310.16763",
        family="supervised-from-reward",
        says="Supervised steps on the best of 16 fresh answers with a KL prior gain reward without hacking it: without the prior answers to "
        "different prompts grow alike and are worse, and PPO on the same reward model is less stable.",
        experiment="The embedded model answers small requests. A reward model of 100 comparisons of its own answers by a hidden taste, a tenth of the "
        "labels flipped, and in half of them the longer answer wins, learned in ten passes: confident, and easy to hack by length. 40 steps of 16 answers to 4 requests, one update each: the "
        "registered method, the same without the prior, and the registered PPO (KL price 0.02) with as many answers and updates. gold: the hidden "
        "taste on 200 held-out requests; proxy: the reward model's score; similarity: shared token pairs of answers to different requests (for "
        "the paper's METEOR).",
        arms={
            "SuperHF": partial(trained, method=REGISTERED),
            "without the prior": partial(trained, method=find_method(REGISTERED).but(terms=())),
            "PPO": partial(trained, method=find_method("ppo").but(rollout="sample(n=16)", epochs=1, minibatches=1)),
        },
        checks=(
            Check("worth more than without the prior", "gold", "SuperHF", "without the prior"),
            Check("answers stay different", "similarity", "SuperHF", "without the prior", margin=0.0, lower=True),
            Check("worth more than PPO's", "gold", "SuperHF", "PPO"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="Attempts before this one trained lookup tables. On word problems, seed 100, with a reward model of 150 right and wrong answers, 40 steps of 2 "
        "questions: accuracy 0.32 (SuperHF), 0.11 (without the prior), 0.02 (PPO), from 0.47 at the start; similarity 0.15, 0.17, 0.11; KL 3, 32, 17. "
        "The reward model knew too little there for anybody to gain; hence a task of taste. There, with labels that do not favour length, gold was 0.42 (SuperHF) and 0.67 (without the prior), similarity 0.116 and "
        "0.127, KL 2 and 7, the start -0.37: nothing to hack in 40 steps, hence the labels that favour it, which were not tried at this size.",
    ),
    __file__,
)
