"""AutoThink: rewards that favour answering at once collapse to one mode; balanced at first, they learn when to think."""

from __future__ import annotations

from functools import partial

import torch

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.thinking import Thinking, ramp
from posttrain.core.registry import Part
from posttrain.methods.grpo import grpo
from posttrain.systems.efficient_reasoning.autothink import autothink_balance as balance
from posttrain.systems.efficient_reasoning.autothink import autothink_length as prune
from posttrain.systems.efficient_reasoning.autothink import naive_reward as naive

T, COPIES, EASY, HARD = 12, 4, 6, 2  # letters at most; steps of 8 answers to 4 questions of each of 8 kinds
STEPS = (60, 40, 10)  # of the three stages
OWN = 0.15  # what a kind learns for itself, beside what all kinds share


def world(seed: int) -> Thinking:
    """Easy questions are right in 90 of 100 without a thought, hard ones in 10; all after 4 letters of work in 95."""
    return Thinking(torch.cat([ramp([4] * EASY, T, low=0.9), ramp([4] * HARD, T)]), seed)


def train(seed: int, stages: tuple[tuple[Part, ...], ...], lr: float) -> dict[str, float]:
    """Three stages of GRPO with these rewards; answering at once is to end with the first letter, which the start policy
    does every third time. Exact figures at the end; rarer: the least share of the rarer mode while in stage 1."""
    w = world(seed)
    policy = w.start(stop=0.15, features_PF=torch.cat([torch.ones(w.P, 1), OWN * torch.eye(w.P)], 1))
    with torch.no_grad():
        policy.table[0, 0, :, -1] += 1.0
    share: list[float] = []

    def look(step: int) -> None:
        share.append(float(w.exact(policy)["direct_P"].mean()))

    for part, (shaping, steps) in enumerate(zip(stages, STEPS, strict=True)):
        w.train(policy, grpo.but(shaping=shaping, terms=()), steps, lr, copies=COPIES, part=part, after=look)
    direct_P = w.exact(policy)["direct_P"]
    return w.told(policy) | {
        "rarer": min(min(x, 1 - x) for x in share[: STEPS[0]]),
        "easy_direct": float(direct_P[:EASY].mean()),
        "hard_direct": float(direct_P[EASY:].mean()),
    }


claim(
    Claim(
        id="autothink",
        title="AutoThink",
        paper="arXiv:2505.10832",
        family="efficient-reasoning",
        says="Rewards that favour answering at once, with the two modes held in balance at first and lengths pruned at last, "
        "teach a model to think only where it must: far fewer tokens at the accuracy of always thinking. The balance keeps "
        "both modes alive.",
        experiment="Six easy kinds (right at once in 90 of 100), two hard ones (10; after 4 letters of work 95); kinds share most "
        "of what is learned. 110 steps of GRPO on 256 answers each: right or wrong alone, AutoThink's rewards without and "
        "with the balance of stage 1. Exact figures.",
        arms={
            "right or wrong": partial(train, stages=((), (), ()), lr=0.2),
            "no balance": partial(train, stages=((naive,), (naive,), (prune,)), lr=0.2),
            "AutoThink": partial(train, stages=((balance,), (naive,), (prune,)), lr=0.2),
        },
        checks=(
            Check("the rarer mode keeps a larger share in stage 1", "rarer", "AutoThink", "no balance", margin=0.02),
            Check("far shorter than right or wrong", "length", "AutoThink", "right or wrong", margin=1.5, lower=True),
            Check("at little cost in accuracy", "accuracy", "AutoThink", "right or wrong", margin=-0.08),
            Check("easy questions are answered at once", "easy_direct", "AutoThink", 0.75),
            Check("hard questions are thought about", "hard_direct", "AutoThink", 0.2, lower=True),
        ),
        seeds=tuple(range(60, 66)),
        tried="Four records (seeds 0-5, 10-14, 20-29, 40-51) were made with a stronger balance than the authors' code has: a direct right "
        "answer went down to 0, theirs to 1; lengths were compared over the whole group, theirs among right and among wrong "
        "answers. The last of them was shown, with a rarer mode of 0.155 more. With the right formulas the balance is weaker: on seeds "
        "100-102, where kinds share nearly all (0.08), the rarer mode falls below 0.02 with and without it at rates of 0.2 and "
        "0.3 and AutoThink ends no better; where kinds learn more for themselves (0.15, here) it doubles the rarer mode's least share "
        "(0.061 against 0.024 at a rate of 0.2, the most accurate of 0.1 and 0.2 for every arm), and both end alike. So that without the "
        "balance a mode dies for good, or the end is worse, does not show. Margins from seeds 200-205. The rewards pay for a direct "
        "answer that is right in 65 of 100 (90 here against 95), hence the loss against always thinking; the paper's gain in "
        "accuracy is not shown.",
    ),
    __file__,
)
