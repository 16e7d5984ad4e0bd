"""Fine-grained RLHF: the same reward teaches more when each segment is paid as it ends than when all is paid at the end."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from claims.machinery.arms import Measured, run_arm
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds import steps as judged
from posttrain.core.credit import split_steps
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.evals.accuracy import answers, held_out

STEPS, PROBLEMS = 20, 300
HOW: dict[str, Any] = {"max_tokens": 64}
FILE = judged.__file__
REWARDS = {
    "segments": f"0.5*word:{FILE}:step + 0.3*answer:task",
    "at the end": f"0.5*answer:{FILE}:steps + 0.3*answer:task",
}


def wrong(policy: Policy, env: Environment) -> dict[str, float]:
    """The share of words of held-out answers that are wrong, answer by answer."""
    groups = answers(policy, env, held_out(env, PROBLEMS, "test"), Sampling(**HOW))
    told = [(g.prompt, r.text) for g in groups for r in g.rollouts]
    return {"error": fmean(_wrong(p, text) for p, text in told)}


def _wrong(prompt: object, text: str) -> float:
    spans = split_steps(text, "word")
    return fmean(judged.step(prompt, text, *span) < 0 for span in spans) if spans else 1.0


def trained(seed: int, rewards: str) -> Measured:
    """20 steps of 8 answers to each of 8 questions, in 4 updates a step."""
    return run_arm(
        seed, method=f"fine-grained-rlhf(steps={STEPS}, rewards={rewards!r})", task="arithmetic", think=True, prompts=8,
        problems=PROBLEMS, further=wrong, sampling=HOW,
    )  # fmt: skip


claim(
    Claim(
        id="fine-grained-rlhf",
        title="Fine-grained RLHF",
        paper="arXiv:2306.01693",
        family="reward-shaping-safety",
        says="Rewards from several models, given at the end of each segment they judge, teach PPO better than the same rewards given once "
        "at the end of the answer: fewer wrong segments after as many samples.",
        experiment="The embedded model on arithmetic with a written calculation. One model says of each word whether it is right at its "
        "place (+0.5 or -0.5), one whether the answer is (0.3). 20 steps of PPO with 64 answers by the registered plan, KL price 0.3: "
        "each word paid on the token that ends it, or the sum of all on the last token. error: share of wrong words on 300 held-out problems.",
        arms={name: partial(trained, rewards=rewards) for name, rewards in REWARDS.items()},
        checks=(
            Check("fewer wrong segments", "error", "segments", "at the end", lower=True),
            Check("more right answers", "accuracy", "segments", "at the end"),
        ),
        seeds=tuple(range(400, 410)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates"), Shared("tokens", within=0.25)),
        tried="",
    ),
    __file__,
)
