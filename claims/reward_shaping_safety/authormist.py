"""An external scorer over HTTP as reward: a service that fails teaches as well as one at hand, and answers still do what was asked."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds import replies
from claims.worlds.service import serving
from posttrain.core import rng
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.evals.accuracy import answers, held_out

TASK, STEPS, PROBLEMS, FAULTS = "instructions", 20, 300, 0.3
HOW: dict[str, Any] = {"max_tokens": 32}
ASKED: dict[str, Any] = {"task": TASK, "prompts": 8, "level": 1, "think": False, "sampling": HOW}


def score(policy: Policy, env: Environment) -> dict[str, float]:
    """What the service would say of one answer to each of 300 other requests."""
    made = answers(policy, env, held_out(env, PROBLEMS, "test"), Sampling(**HOW))
    return {"score": fmean(replies.courteous(r.text) for g in made for r in g.rollouts)}


def trained(seed: int, reward: str) -> Measured:
    """20 steps of the registered plan with 64 answers; score and accuracy, and what each gained from the start."""
    with Bench(seed) as bench:
        run = bench.run("authormist", method=f"authormist(steps={STEPS})", reward=reward, **ASKED)
        before, after = (
            bench.measured(r, TASK, PROBLEMS, score, level=1, think=False, sampling=HOW) for r in (None, run)
        )
        gained = {f"{k}_gained": after[k] - before[k] for k in ("score", "accuracy")}
        return Measured({**after, **gained}, after.spent, after.curves)


def over_http(seed: int, retries: int = 3, keep: int = 100_000, zero: bool = False) -> Measured:
    """A service that fails 3 requests in 10. zero: it says 0 instead of failing."""
    draw, asked = rng.python("faults", seed), [0]

    def answer(items: list[dict[str, str]], headers: dict[str, str]) -> tuple[int, Any]:
        asked[0] += len(items)
        busy = draw.random() < FAULTS
        if busy and not zero:
            return 503, {"error": "busy"}
        return 200, {"scores": [0.0 if busy else replies.courteous(item["text"]) for item in items]}

    with serving(answer) as url:
        how = f"batch=4, retries={retries}, keep={keep}, wait=0.0, rate=100000.0, patience=1000000"
        found = trained(seed, f"http-scorer(url='{url}', {how})")
    return Measured({**found, "asked": asked[0] / found.spent["samples"]}, found.spent, found.curves)


claim(
    Claim(
        id="authormist",
        title="External scorer as reward",
        paper="arXiv:2503.08716",
        family="reward-shaping-safety",
        says="A black-box service can be the reward of GRPO: what it scores rises while answers still say what was asked. Here only the neutral "
        "mechanism: a faulty scorer teaches as well as the same scorer at hand, since what failed is tried again and then masked, never worth 0.",
        experiment="The embedded model on short requests (thank Mia, invite Tom). A local service scores how courteous an answer is and fails 3 "
        "requests in 10. 20 steps of 64 answers by the registered plan: over HTTP with cache and retries; the score at hand; over HTTP "
        "without either, failures masked; and a service that says 0 instead of failing. score, and accuracy (whether the request was "
        "met, which is not rewarded), of one answer to each of 300 other requests; gained: against the start.",
        arms={
            "service": over_http,
            "at hand": partial(trained, reward=f"{replies.__file__}:at_hand"),
            "failures masked": partial(over_http, retries=0, keep=0),
            "failures as 0": partial(over_http, retries=0, keep=0, zero=True),
        },
        checks=(
            Check("the score rises", "score_gained", "service", 0.0, margin=0.2),
            Check("answers still do what was asked", "accuracy_gained", "service", 0.0, margin=-0.05),
            Check("as good as at hand", "score", "service", "at hand", margin=-0.05),
            Check("failures must not be zeros", "score", "failures masked", "failures as 0", margin=0.02),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="Attempt 1 trained lookup tables. On the embedded model, seed 100, after 6 steps and 60 requests: the score rose by 0.08 over the service "
        "and at hand alike, by 0.06 with failures masked and by 0.11 with failures as 0, accuracy by 0.03 to 0.12; so 20 steps are taken, and "
        "longer answers. Margins were set before that was run on any seed. The similarity guard, transfer between services and anything "
        "about detectors are left out on purpose.",
    ),
    __file__,
)
