"""Open-RS: easy questions mixed in give a better start and shorter answers, a cosine of the length keeps them short, and
training on hard questions alone under a tight limit falls after its peak."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.thinking import Thinking, ramp
from posttrain.core.registry import Part
from posttrain.core.types import Rollout
from posttrain.methods.grpo import grpo
from posttrain.systems.efficient_reasoning.open_rs import cosine_and_form as reward

T, STEPS = 16, 50
NEED = (2, 4, 8, 12)  # letters of work of four kinds; the limit is 16 and the start policy writes 11
COSINE = reward.but(longest=T, outcome="task", format="format")


def train(
    seed: int, shaping: tuple[Part, ...] = (), kinds: Sequence[int] | None = None, copies: int = 3, lr: float = 0.1
) -> dict[str, float]:
    """8 answers to each of 12 questions a step. Kinds share half of what they learn; right and well-formed (ended) earn 1
    each. Exact figures over all kinds at the end, and as they were after 10 steps."""
    w, P = Thinking(ramp(NEED, T), seed), len(NEED)
    policy = w.start(stop=0.05, features_PF=torch.cat([torch.ones(P, 1), torch.eye(P)], 1))
    curve: list[float] = []

    def scored(rollouts: list[Rollout]) -> Tensor:
        right_B = w.right(rollouts)
        for r, x in zip(rollouts, right_B.tolist(), strict=True):
            r.rewards = {"task": x, "format": float(not r.truncated)}
        return right_B + torch.tensor([float(not r.truncated) for r in rollouts])

    def look(step: int) -> None:
        if step % 5 == 4:
            curve.append(w.told(policy)["accuracy"])

    method = grpo.but(shaping=shaping, terms=())
    seen = w.train(policy, method, STEPS, lr, copies=copies, kinds=kinds, worth=scored, after=look)
    over = sum(x["truncated"] for x in seen) / STEPS
    return w.told(policy) | {"early": curve[1], "lost": max(curve) - curve[-1], "over": over}


claim(
    Claim(
        id="open-rs",
        title="Open-RS",
        paper="arXiv:2503.16219",
        family="efficient-reasoning",
        says="Small models gain within 50 to 100 steps; hard questions alone under a tight limit then lose it again. Easy "
        "questions mixed in give a better start and shorter answers; a cosine of the length keeps length down at no loss.",
        experiment="Four kinds of questions need 2 to 12 letters of work, the limit is 16; kinds share half of what is learned. "
        "50 steps of GRPO on 96 answers each: the two hard kinds alone, all four, all four with the cosine.",
        arms={
            "hard": partial(train, kinds=(2, 3), copies=6),
            "mixed": train,
            "mixed, cosine": partial(train, shaping=(COSINE,)),
        },
        checks=(
            Check("mixing: a better start", "early", "mixed", "hard"),
            Check("mixing: shorter answers", "length", "mixed", "hard", margin=1.0, lower=True),
            Check("hard alone: falls after its peak", "lost", "hard", 0.02),
            Check("the cosine keeps answers short", "length", "mixed, cosine", "mixed", margin=1.0, lower=True),
            Check("with fewer over the limit", "over", "mixed, cosine", "mixed", lower=True),
            Check("and no less accurate", "accuracy", "mixed, cosine", "mixed", margin=-0.02),
        ),
        seeds=tuple(range(5)),
        tried="Learning rates 0.1 to 0.3, starts of 5 to 14 letters, kinds sharing half or more, on seeds 100-101. The fall after "
        "the peak does not show: what is cut off counts as wrong, and a table learns to end in time; whatever makes models "
        "fall (drift of language, say) is not in this world. Nor do fewer run over the limit: wrong answers are paid for "
        "length, and the limit is not punished. The cosine costs accuracy on the hardest kind within 50 steps, though the "
        "reward is highest at its full length: short right answers of the other kinds pull it along.",
    ),
    __file__,
)
