"""SuperHF: under a KL prior the imitation of the best of 16 hacks a reward model less, and leaves answers more varied."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from pathlib import Path

from claims.machinery.arms import Bench, Further, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.compared import ASKED, HOW, TASK, comparisons, proxy, reward_model
from posttrain.core.method import Method, find_method
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Rollout
from posttrain.evals.accuracy import answers, held_out
from posttrain.evals.diversity import ngrams
from posttrain.evals.kl import kl_of

PAIRS, STEPS, PROMPTS, PROBLEMS, COMPARED = 150, 40, 2, 400, 60
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
        return {**proxy(model)(policy, env), "similarity": sum(alike) / 2, "kl": moved}

    return look


def trained(seed: int, method: str | Method) -> Measured:
    """40 steps of 16 answers to 2 questions, one update each, against a reward model of few comparisons."""
    with Bench(seed) as bench:
        model = reward_model(bench, comparisons(bench, PAIRS, questions=400))
        run = bench.run("run", method=method, reward=str(model), steps=STEPS, prompts=PROMPTS, **ASKED)
        return bench.measured(run, TASK, PROBLEMS, further(bench, model), think=True, sampling=HOW)


claim(
    Claim(
        id="superhf",
        title="SuperHF",
        paper="arXiv:2310.16763",
        family="supervised-from-reward",
        says="Supervised steps on the best of 16 fresh answers with a KL prior gain reward without hacking it: without the prior answers to "
        "different prompts grow alike and are worse, and PPO on the same reward model is less stable.",
        experiment="The embedded model on word problems. A reward model of 150 comparisons of the start's own answers, few enough to be hacked; "
        "40 steps of 16 answers to 2 questions, one update each: the registered method, the same without the prior, and the registered PPO "
        "(KL price 0.02) with as many answers and updates. accuracy, which nobody is paid for, on 400 held-out problems; proxy: the reward "
        "model's score; similarity: shared token pairs of answers to different questions (for the paper's METEOR).",
        arms={
            "SuperHF": partial(trained, method=REGISTERED),
            "without the prior": partial(trained, method=find_method(REGISTERED).but(terms=())),
            "PPO": partial(trained, method=find_method("ppo").but(rollout="sample(n=16)", epochs=1, minibatches=1)),
        },
        checks=(
            Check("worth more than without the prior", "accuracy", "SuperHF", "without the prior", margin=0.02),
            Check("answers stay different", "similarity", "SuperHF", "without the prior", margin=0.0, lower=True),
            Check("worth more than PPO's", "accuracy", "SuperHF", "PPO", margin=0.02),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="Attempts before this one trained lookup tables.",
    ),
    __file__,
)
