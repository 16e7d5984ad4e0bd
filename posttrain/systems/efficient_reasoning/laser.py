"""LASER: GRPO with a bonus for right answers within a target length; LASER-D sets the targets by difficulty as it goes,
LASER-DE lets what is still wrong think on.

Departures: the target is 32 tokens and LASER-D's first ones 64, the paper's thousands: use
`--shaping "laser(target=4096)"` or `--shaping "laser_d(longest=8192)"`, with a larger `--sampling.max-tokens`. The
authors set LASER-D's targets from 500 held-out questions every few steps, on a grid of 1,024 and never below 4,096;
here from the training answers since the last time, at any length. Wrong answers earn 0 as in the paper, -1/2 in its
code. alpha 0.5, the bounds of difficulty and the rule for a target are the paper's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.group import group_mean, group_size
from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.method import method
from posttrain.core.registry import shaping
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.rewards.shaping.repeats import repeated

# ---- what changes the rewards


@shaping(name="laser", title="LASER", paper="arXiv:2505.15612", reads=("reward_BT",))
def length_bonus(batch: Batch, target: float = 32.0, alpha: float = 0.5, outcome: str = "reward") -> Tensor:
    """LASER: a right answer within the target length earns a bonus; a longer one loses only that, it is not cut off.

    R <- R + alpha [right and n <= target];  right: the outcome (the reward, or that component of it) is above 1/2
    The window must be much larger than the target. The paper's R is 1 or 0, its code's 1 or -1/2.
    """
    bonus_B = (component(batch, outcome) > 0.5) & (batch.lengths_B <= target)
    return on_last(batch.returns_B + alpha * bonus_B, batch)


@shaping(
    name="laser_d",
    title="LASER-D, LASER-DE",
    paper="arXiv:2505.15612",
    base="laser",
    system="laser",
    reads=("group_B", "reward_BT"),
)
class by_difficulty:
    """LASER-D: LASER with a target length for each difficulty, easy, medium and hard, that follows what the policy can do.

    Difficulty of a group of G: more than 2/3 right, more than 1/3, or fewer. Every so many steps the target of a level
    becomes the smallest L with m share(right answers of at most L tokens) >= 1, m = floor(2G/3), floor(G/3), 1: one of the
    right answers that a group of that level has at least would still fit. explore=True is LASER-DE: a wrong answer that
    runs past the target earns the bonus too, unless an n-gram of it repeats. The paper counts on a set of its own, here
    the answers since the last time do.
    """

    def __init__(self, longest: float = 64.0, alpha: float = 0.5, every: int = 5, explore: bool = False, n: int = 20,
                 outcome: str = "reward") -> None:  # fmt: skip
        self.alpha, self.every, self.explore, self.n, self.outcome = alpha, every, explore, n, outcome
        self.targets, self.steps = [float(longest)] * 3, 0
        self.seen: list[list[float]] = [[], [], []]  # lengths of right answers since the last update, by level
        self.least = [1, 1, 1]

    def __call__(self, batch: Batch) -> Tensor:
        group_B, valid_B, n_B = batch["group_B"], batch.valid_B, batch.lengths_B
        right_B = component(batch, self.outcome) > 0.5
        rate_B = group_mean(right_B.to(n_B), group_B, valid_B)
        level_B = (rate_B <= 2 / 3).long() + (rate_B <= 1 / 3).long()
        within_B = n_B <= torch.tensor(self.targets).to(n_B)[level_B]
        bonus_B = right_B & within_B
        if self.explore:
            bonus_B |= ~right_B & ~within_B & ~repeated(batch, self.n).any(-1)
        G = int(group_size(group_B, valid_B).max())
        self.least = [max(1, 2 * G // 3), max(1, G // 3), 1]
        for level, n in zip(level_B[right_B & valid_B].tolist(), n_B[right_B & valid_B].tolist(), strict=True):
            self.seen[level].append(n)
        self.steps += 1
        if self.steps % self.every == 0:
            self.update()
        return on_last(batch.returns_B + self.alpha * bonus_B, batch)

    def update(self) -> None:
        """Move the target of each level that had a right answer."""
        for level, (lengths, m) in enumerate(zip(self.seen, self.least, strict=True)):
            if lengths:
                self.targets[level] = sorted(lengths)[-(-len(lengths) // m) - 1]  # ceil(N / m) answers fit
        self.seen = [[], [], []]

    def state_dict(self) -> dict[str, Any]:
        return {"targets": self.targets, "seen": self.seen, "steps": self.steps, "least": self.least}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.targets, self.seen = list(state["targets"]), [list(x) for x in state["seen"]]
        self.steps, self.least = int(state["steps"]), list(state["least"])


# ---- the methods

adaptive: Any = by_difficulty  # a class that a decorator made a Part

laser = method(
    grpo.but(
        name="laser", title="LASER", paper="arXiv:2505.15612", doc=__doc__,
        shaping=length_bonus, terms=(), aggregate=token_mean,
    )
)  # fmt: skip
laser_d = method(laser.but(name="laser-d", title="LASER-D", shaping=adaptive))
laser_de = method(laser.but(name="laser-de", title="LASER-DE", shaping=adaptive.but(explore=True)))
