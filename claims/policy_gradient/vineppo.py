"""VinePPO: values from fresh answers out of each state give better credit than a critic."""

from __future__ import annotations

from functools import partial
from typing import Any

from claims.machinery.arms import Measured, run_arm
from claims.machinery.claim import Check, Claim, Shared, claim
from posttrain.core.method import find_method

STEPS, PROMPTS, PROBLEMS = 6, 8, 400
CRITIC: dict[str, Any] = {
    "rollout": "sample(n=8)", "select": (), "advantage": "gae(lam=1.0)", "terms": ("kl(coef=1e-4)", "value_loss"),
}  # fmt: skip


def trained(seed: int, **changed: Any) -> Measured:
    """6 steps of 16 updates, 8 answers to each of 8 prompts; a vine's state is every 8 tokens, since these thoughts have no lines."""
    return run_arm(
        seed, method=find_method("vineppo").but(**({"rollout": "vine(tokens=8)"} | changed)), task="word_problems", think=True,
        problems=PROBLEMS, prompts=PROMPTS, steps=STEPS, sampling={"max_tokens": 48},
    )  # fmt: skip


claim(
    Claim(
        id="vineppo",
        title="VinePPO",
        paper="arXiv:2410.01679",
        family="policy-gradient",
        says="Credit from the mean reward of fresh answers out of each state is better than that of PPO's critic, which is barely better "
        "than a guess: higher accuracy after as many updates.",
        experiment="The embedded model on word problems with a written chain of thought, 46 to 50% right at the start. 6 steps of 16 updates on 8 answers "
        "to each of 8 prompts: the registered method (9 vines from every 8 tokens), PPO with a critic (lambda 1, as the paper's) and one credit for the whole "
        "answer (RLOO); same clip, KL, prompts, trained answers and updates. The vines are sampled on top, about 20 for each answer, as in the paper. "
        "Accuracy of one sampled answer to each of 400 held-out problems.",
        arms={
            "VinePPO": trained,
            "critic": partial(trained, **CRITIC),
            "whole answer": partial(trained, rollout="sample(n=8)", select=(), advantage="rloo"),
        },
        checks=(
            Check("better than with a critic", "accuracy", "VinePPO", "critic", margin=0.02),
            Check("better than credit for the whole answer", "accuracy", "VinePPO", "whole answer"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("updates"), Shared("samples", arms=("critic", "whole answer"))),
        tried="Seed 100: VinePPO 0.51, a critic 0.67, the whole answer 0.65. Nothing was changed after it, but for two seeds fewer.",
    ),
    __file__,
)
