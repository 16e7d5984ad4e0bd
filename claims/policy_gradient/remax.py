"""ReMax: the greedy answer's reward as the baseline makes REINFORCE learn as PPO does, without a critic."""

from __future__ import annotations

from typing import Any

from claims.machinery.arms import Measured, run_arm
from claims.machinery.claim import Check, Claim, Shared, claim
from posttrain.core.method import Method, find_method

STEPS, PROMPTS, PROBLEMS = 16, 32, 400
PRICED: dict[str, Any] = {"shaping": "kl_in_reward(coef=0.03)", "rollout": "sample(n=1)"}


def trained(seed: int, method: str | Method = "remax") -> Measured:
    """16 steps of one answer to each of 32 prompts (ReMax samples the likeliest one besides, and does not learn from it)."""
    return run_arm(
        seed, method=method, task="word_problems", think=True, problems=PROBLEMS, prompts=PROMPTS, steps=STEPS,
        sampling={"max_tokens": 48},
    )  # fmt: skip


claim(
    Claim(
        id="remax",
        title="ReMax",
        paper="arXiv:2310.10505",
        family="policy-gradient",
        says="REINFORCE with the reward of the greedy answer as its baseline has so much less variance that it learns far better than REINFORCE without, "
        "and no worse than PPO, without PPO's critic.",
        experiment="The embedded model on word problems with a written chain of thought, 46 to 50% right at the start, 16 steps of one answer to each of 32 "
        "prompts and one update. The registered method, REINFORCE with the same KL price, and PPO with its critic, the same price and one pass; same "
        "prompts, answers to learn from and updates. The greedy answer is sampled on top, as in the paper. Accuracy of one sampled answer to each of 400 "
        "held-out problems.",
        arms={
            "ReMax": trained,
            "REINFORCE": lambda seed: trained(seed, find_method("reinforce").but(**PRICED)),
            "PPO": lambda seed: trained(seed, find_method("ppo").but(**PRICED, epochs=1, minibatches=1)),
        },
        checks=(
            Check("better than without the baseline", "accuracy", "ReMax", "REINFORCE", margin=0.02),
            Check("no worse than PPO", "accuracy", "ReMax", "PPO", margin=-0.03),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("updates"), Shared("samples", arms=("REINFORCE", "PPO"))),
        tried="With two sampled answers for REINFORCE and PPO, as many as ReMax samples, and 12 steps (seed 100): ReMax 0.70, REINFORCE 0.90, PPO "
        "0.87. There they learn from twice as many answers; the paper's comparison is at as many answers to learn from, as it is now. Rewards of "
        "0 and 1 suit REINFORCE without a baseline: only right answers move it.",
    ),
    __file__,
)
