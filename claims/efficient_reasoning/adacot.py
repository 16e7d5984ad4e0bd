"""AdaCoT: penalties for thoughts missing and thoughts too many set how often a policy thinks; a stage of hard questions
alone teaches to think always, unless the token that decides is left out of the loss."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.thinking import Thinker, Thinking, ramp
from posttrain.advantages.gae import gae
from posttrain.core.registry import Part
from posttrain.core.types import Prompt, Rollout
from posttrain.methods.ppo import ppo
from posttrain.systems.efficient_reasoning.adacot import mode_penalty as penalty
from posttrain.systems.efficient_reasoning.adacot import without_the_decision as masked

T, EASY, HARD = 12, 3, 3
SKEWED, MIXED = 20, 25  # steps of the two stages, 96 answers each
OWN = 0.5  # what a kind learns for itself, beside what all kinds share


def world(seed: int) -> Thinking:
    """Easy questions are right at once in 92, 85 or 70 of 100, hard ones in 10; all after 4 letters of work in 95."""
    easy = [ramp([4], T, low=x) for x in (0.92, 0.85, 0.7)]
    return Thinking(torch.cat([*easy, ramp([4] * HARD, T)]), seed)


def imitated(w: Thinking) -> Thinker:
    """As after SFT: it thinks for 80% of hard and 30% of easy questions, and then for too long or too short."""
    policy = w.start(stop=0.2, features_PF=torch.cat([torch.ones(w.P, 1), OWN * torch.eye(w.P)], 1))
    first = torch.tensor([0.7] * EASY + [0.2] * HARD)  # chance to end at once
    with torch.no_grad():
        policy.table[:, 0] = 0.0
        policy.table[1:, 0, 0, -1] = torch.logit(first) / OWN
    return policy


@lru_cache(maxsize=8)
def paid(needed: bool, thought: bool, miss: float, over: float) -> float:
    text = "<think>a</think>1" if thought else "<think></think>1"
    return float(penalty(Prompt.text("", "", cot=needed), text, miss=miss, over=over))


def train(
    seed: int, advantage: Part | None, miss: float = 0.3, over: float = 0.15, lr: float = 0.1
) -> dict[str, float]:
    """Hard questions alone with this credit (None: no such stage), then all kinds with GAE. Exact figures."""
    w = world(seed)
    policy = imitated(w)

    def worth(rollouts: list[Rollout]) -> Tensor:
        modes = [(int(r.context) >= EASY, len(r) > 1) for r in rollouts]
        return w.right(rollouts) + torch.tensor([paid(*mode, miss, over) for mode in modes])

    before, base = w.exact(policy)["direct_P"], ppo.but(shaping=())
    if advantage is not None:
        hard = range(EASY, EASY + HARD)
        w.train(policy, base.but(advantage=advantage), SKEWED, lr, kinds=hard, copies=4, worth=worth)
    skewed = w.exact(policy)
    w.train(policy, base, MIXED, lr, copies=2, worth=worth, part=1)
    found = w.exact(policy)
    return w.told(policy) | {
        "moved": float((skewed["direct_P"] - before)[:EASY].abs().mean()),
        "skewed_easy": float(1 - skewed["direct_P"][:EASY].mean()),
        "skewed_accuracy": float(skewed["right_P"][EASY:].mean()),
        "thinks": float(1 - found["direct_P"].mean()),
        "easy_thinks": float(1 - found["direct_P"][:EASY].mean()),
        "hard_thinks": float(1 - found["direct_P"][EASY:].mean()),
    }


claim(
    Claim(
        id="adacot",
        title="AdaCoT",
        paper="arXiv:2505.11896",
        family="efficient-reasoning",
        says="The price of a thought too many moves a policy along a frontier of accuracy against thinking. RL on questions that "
        "all need a thought makes it think always; masking the loss of the deciding token keeps the boundary learned before.",
        experiment="Three easy kinds (right at once in 92, 85 and 70 of 100) and three hard ones (10; after 4 letters of work 95) that share "
        "half of what is learned; the start policy thinks for 30% and 80%. PPO on hard questions alone for 20 steps of 96 "
        "answers, with and without the mask, then on all for 25; and three prices without the first stage. Exact figures.",
        arms={
            "no mask": partial(train, advantage=gae),
            "mask": partial(train, advantage=masked.but(at=0)),
            "over 0": partial(train, advantage=None, over=0.0),
            "over 0.15": partial(train, advantage=None),
            "over 0.35": partial(train, advantage=None, over=0.35),
        },
        checks=(
            Check("without the mask easy is thought about too", "skewed_easy", "no mask", 0.9),
            Check("with it the boundary stays", "moved", "mask", 0.05, lower=True, exact=True),
            Check("while hard questions are learned", "skewed_accuracy", "mask", 0.7),
            Check("after all kinds: as accurate", "accuracy", "mask", "no mask", margin=-0.02),
            Check("price 0.15: fewer thoughts than 0", "thinks", "over 0.15", "over 0", margin=0.1, lower=True),
            Check("price 0.35: fewer than 0.15", "thinks", "over 0.35", "over 0.15", margin=0.05, lower=True),
            Check("which accuracy pays for", "accuracy", "over 0", "over 0.35", margin=0.02),
            Check("hard questions are thought about still", "hard_thinks", "over 0.35", 0.9),
        ),
        seeds=tuple(range(10, 15)),
        tried="Learning rates 0.05 and 0.1 on seeds 100-101. A first record (seeds 0-4) had easy kinds of 85 of 100 and a price of 0.1, "
        "at which thinking and not thinking are worth exactly the same: seven of nine checks showed, those on what follows from "
        "that price did not. Now easy kinds differ and the prices lie between their break-even points; seeds are new. The mask "
        "holds the decision of every kind where it was, so after the stage of hard questions alone those are less accurate with "
        "it (0.78) than without (0.95): it keeps the boundary, right or wrong. After 25 steps on all kinds both think equally "
        "often: that the mask pays in the end does not show, and is not checked any more. Labels are the true ones.",
    ),
    __file__,
)
