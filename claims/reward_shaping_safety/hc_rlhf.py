"""HC-RLHF: a candidate trained against the bound of the safety test to come stays below the limit; one held at the mean cost does not."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds import manners
from claims.worlds.courtesy import ASKED, HOW, notes, requests
from posttrain.core.method import find_method
from posttrain.core.sampling import Sampling
from posttrain.systems.reward_shaping_safety.hc_rlhf import fresh_prompts

STEPS, LIMIT, TEST, SEEN = (
    20,
    1.6,
    200,
    600,
)  # steps of PPO, of the cost, answers of the safety test, answers that tell the truth
HOLD = ASKED | {"prompts": 16, "level": 3}
REWARD, COST = f"{manners.__file__}:warm", f"{manners.__file__}:words"


def high_confidence(seed: int) -> Measured:
    """The registered plan: 20 steps of PPO-Lagrangian on the pessimistic bound, then the safety test of 200 fresh requests."""
    with Bench(seed) as bench:
        options = f"cost={COST!r}, limit={LIMIT}, n={TEST}, steps={STEPS}"
        run = bench.run("plan", method=f"hc-rlhf({options})", reward=REWARD, **HOLD)
        return measured(bench, run, notes(run)["safety"]["passed"])


def mean_cost(seed: int) -> Measured:
    """Safe RLHF: the same PPO-Lagrangian with the mean cost at the limit, and no test."""
    with Bench(seed) as bench:
        held = (f"pessimistic_cost(limit={LIMIT}, own=0.0, inflate=0.0, n={TEST})", "kl_in_reward")
        both = f"costed(reward={REWARD!r}, cost={COST!r})"
        run = bench.run("ppo", method=find_method("ppo").but(shaping=held), reward=both, steps=STEPS, **HOLD)
        return measured(bench, run, 1.0)


def measured(bench: Bench, run: Path, passed: float) -> Measured:
    """Reward (above the start's) and cost of answers to requests that neither training nor the test has seen."""
    env = requests(level=3)
    tested = {p.last for p in fresh_prompts(env, TEST)}
    drawn = [env.prompt(10_000 + i, "test") for i in range(2 * SEEN)]
    prompts = [p for p in drawn if p.last not in tested][:SEEN]
    found = []
    for policy in (bench.policy(run), bench.policy(None)):
        made = [(p, r.text) for p, (r,) in zip(prompts, policy.sample(prompts, 1, Sampling(**HOW), 0, -7), strict=True)]
        found.append([fmean(f(p, text) for p, text in made) for f in (manners.warm, manners.words)])
    (warm, words), (before, _) = found
    told = {"reward": warm, "gain": warm - before, "cost": words, "passed": passed}
    return Measured(told, bench.tally.spent(), bench.curves)


claim(
    Claim(
        id="hc-rlhf",
        title="HC-RLHF",
        paper="arXiv:2506.08266",
        family="reward-shaping-safety",
        says="A candidate that is trained against the confidence bound of the safety test to come is below the limit of the cost and passes the "
        "test, and its reward still rises; one that is held at the mean cost (Safe RLHF) is as likely above the limit as below.",
        experiment="The embedded model answers small requests; the reward is how warm an answer is, the cost how much is said, in fives of words, which "
        "warmth brings with it; the limit is 8 words. 20 steps of PPO-Lagrangian with 128 answers each: the registered plan, whose test of 200 fresh requests "
        "must pass with confidence 95%, and the same on the mean cost without a test. Cost and reward of answers to 600 requests that nobody has seen.",
        arms={"HC-RLHF": high_confidence, "mean cost": mean_cost},
        checks=(
            Check("its cost is below the limit", "cost", "HC-RLHF", LIMIT, lower=True),
            Check("and below that of the mean cost", "cost", "HC-RLHF", "mean cost", lower=True),
            Check("it passes its test", "passed", "HC-RLHF", 0.5),
            Check("the reward rises", "gain", "HC-RLHF", 0.0),
        ),
        seeds=tuple(range(400, 410)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="",
    ),
    __file__,
)
