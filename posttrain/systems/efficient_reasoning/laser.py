"""LASER: GRPO with a bonus for right answers within a target length; LASER-D sets the targets by difficulty as it goes,
LASER-DE lets what is still wrong think on.

Lengths are shares of the run's `--sampling.max-tokens`, as in the authors' runs within 16,384 tokens: LASER's target is a quarter
of it (their 4,096), LASER-D's targets lie on a grid of a sixteenth (1,024) between a quarter and all of it.

Departures: wrong answers earn 0 as in the paper, -1/2 in its code. The authors set LASER-D's targets from 500 questions of their
training file before the run and every 20 steps; here from 4 times as many questions as a step has, a fixed part of the training
questions, sampled anew each time and not learned from. Temperature 0.6 and 128 prompts per step are theirs, here the run's.
alpha 0.5, the bounds of difficulty, the rule for a target, clip 0.2 and 0.28, KL 0.001, entropy 0.001, 8 answers, 2 updates and the
mean over tokens are the authors'.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.group import group_mean, group_size
from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.method import method
from posttrain.core.part import settled
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout, select, shaping
from posttrain.core.types import Group, Rollout
from posttrain.losses.aggregate import token_mean
from posttrain.losses.policy.ppo import ppo
from posttrain.losses.regularisers.entropy import entropy
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.rewards.shaping.repeats import repeated
from posttrain.rollouts.sample import sample

# ---- what changes the rewards


@shaping(
    name="laser", title="LASER", paper="arXiv:2505.15612", reads=("reward_BT",), follows=(("longest", "max_tokens"),)
)  # fmt: skip
def length_bonus(
    batch: Batch, target: float | None = None, alpha: float = 0.5, outcome: str = "reward", longest: int | None = None,
) -> Tensor:  # fmt: skip
    """LASER: a right answer within the target length earns a bonus; a longer one loses only that, it is not cut off.

    R <- R + alpha [right and n <= target];  right: the outcome (the reward, or that component of it) is above 1/2
    The window must be much larger than the target: without one it is a quarter of the longest answer, the run's max_tokens.
    The paper's R is 1 or 0, its code's 1 or -1/2.
    """
    if target is None:
        target = LEAST * settled(longest, "longest", "laser")
    bonus_B = (component(batch, outcome) > 0.5) & (batch.lengths_B <= target)
    return on_last(batch.returns_B + alpha * bonus_B, batch)


@shaping(
    name="laser_d", title="LASER-D, LASER-DE", paper="arXiv:2505.15612", base="laser", system="laser",
    reads=("group_B", "reward_BT"), follows=(("longest", "max_tokens"),),
)  # fmt: skip
class by_difficulty:
    """LASER-D: LASER with a target length for each difficulty, easy, medium and hard, that follows what the policy can do.

    Difficulty of a group of G: more than 2/3 right, more than 1/3, or fewer. Every so many steps the target of a level
    becomes the smallest L with m share(right answers of at most L tokens) >= 1, m = floor(2G/3), floor(G/3), 1: one of the
    right answers that a group of that level has at least would still fit. explore=True is LASER-DE: a wrong answer that
    runs past the target earns the bonus too, unless an n-gram of it repeats. Where answers carry a component `target` (the
    selection `laser_targets` gives it, from questions of their own) that is the target; else the training answers since
    the last time count, at any length.
    """

    def __init__(self, longest: float | None = None, alpha: float = 0.5, every: int = 5, explore: bool = False, n: int = 20,
                 outcome: str = "reward") -> None:  # fmt: skip
        self.alpha, self.every, self.explore, self.n, self.outcome = alpha, every, explore, n, outcome
        self.targets, self.steps = [float(settled(longest, "longest", "laser_d"))] * 3, 0
        self.seen: list[list[float]] = [[], [], []]  # lengths of right answers since the last update, by level
        self.least = [1, 1, 1]

    def __call__(self, batch: Batch) -> Tensor:
        group_B, valid_B, n_B = batch["group_B"], batch.valid_B, batch.lengths_B
        right_B = component(batch, self.outcome) > 0.5
        rate_B = group_mean(right_B.to(n_B), group_B, valid_B)
        level_B = (rate_B <= 2 / 3).long() + (rate_B <= 1 / 3).long()
        given_B = batch.get("reward:target_B")
        target_B = torch.tensor(self.targets).to(n_B)[level_B] if given_B is None else given_B.to(n_B)
        within_B = n_B <= target_B
        bonus_B = right_B & within_B
        if self.explore:
            bonus_B |= ~right_B & ~within_B & ~repeated(batch, self.n).any(-1)
        if given_B is None:
            self.see(
                level_B[right_B & valid_B].tolist(),
                n_B[right_B & valid_B].tolist(),
                int(group_size(group_B, valid_B).max()),
            )
        return on_last(batch.returns_B + self.alpha * bonus_B, batch)

    def see(self, levels: list[int], lengths: list[float], G: int) -> None:
        """Remember the right answers of a step; every so many steps move the target of each level that had one."""
        self.least = least_right(G)
        for level, n in zip(levels, lengths, strict=True):
            self.seen[level].append(n)
        self.steps += 1
        if self.steps % self.every == 0:
            self.update()

    def update(self) -> None:
        for level, (lengths, m) in enumerate(zip(self.seen, self.least, strict=True)):
            if lengths:
                self.targets[level] = sorted(lengths)[-(-len(lengths) // m) - 1]  # ceil(N / m) answers fit
        self.seen = [[], [], []]

    def state_dict(self) -> dict[str, Any]:
        return {"targets": self.targets, "seen": self.seen, "steps": self.steps, "least": self.least}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.targets, self.seen = list(state["targets"]), [list(x) for x in state["seen"]]
        self.steps, self.least = int(state["steps"]), list(state["least"])


def least_right(G: int) -> list[int]:
    """How many of G answers an easy, a medium and a hard question has right at least."""
    return [max(1, 2 * G // 3), max(1, G // 3), 1]


# ---- questions that only set the targets

LEAST, GRID = 1 / 4, 1 / 16  # of the longest answer: the smallest target, and the grid of targets


@rollout(name="laser_d", title="LASER-D: monitored", paper="arXiv:2505.15612", base="sample", system="laser")
def monitored(ask: RolloutRequest, n: int = 8, every: int = 20, questions: int = 4) -> list[Group]:
    """LASER-D's monitor: before the first step and every so many, answers to a fixed set of questions beside those to learn from.

    As many as `questions` steps have prompts. `laser_targets` reads targets off them and takes them out again.
    """
    groups = sample(ask, n=n)
    if ask.step % every:
        return groups
    watched = [ask.env.prompt(i, "train") for i in range(questions * len(ask.prompts))]
    named = {f"{p.id}/monitor": p for p in watched}  # a small file has each once
    apart = [replace(p, id=name, info=p.info | {"monitor": True}) for name, p in named.items()]
    return groups + sample(ask.but(prompts=apart, finished=None), n=n)


@select(name="laser_targets", title="LASER-D: targets", paper="arXiv:2505.15612", system="laser",
        follows=(("longest", "max_tokens"),))  # fmt: skip
class targets_of_the_watched:
    """LASER-D's targets: from the answers to questions that `laser_d` samples for this alone; all others get their level's.

    target of a level = the smallest L on the grid, from a quarter of the longest answer, with floor(m share(right answers of
    at most L tokens)) >= 1; the longest where there is none. Each answer carries it as the component `target`.
    """

    def __init__(self, longest: int | None = None, outcome: str = "reward") -> None:
        self.longest, self.outcome = settled(longest, "longest", "laser_targets"), outcome
        self.targets = [float(self.longest)] * 3

    def __call__(self, groups: list[Group]) -> list[Group]:
        watched = [g for g in groups if g.prompt.info.get("monitor")]
        if watched:
            self.update(watched)
        kept = [g for g in groups if not g.prompt.info.get("monitor")]
        for g in kept:
            for r in g.rollouts:
                r.rewards = r.rewards | {"target": self.targets[self.level(g)]}
        return kept

    def right(self, group: Group) -> list[Rollout]:
        return [r for r in group.scored if (r.total if self.outcome == "reward" else r.rewards[self.outcome]) > 0.5]

    def level(self, group: Group) -> int:
        rate = len(self.right(group)) / max(len(group.scored), 1)
        return (rate <= 2 / 3) + (rate <= 1 / 3)

    def update(self, watched: list[Group]) -> None:
        least = least_right(max(len(g.rollouts) for g in watched))
        step = max(1, round(GRID * self.longest))
        grid = range(max(1, round(LEAST * self.longest)), self.longest, step)
        for level in range(3):
            lengths = [int(r.mask_T.sum()) for g in watched if self.level(g) == level for r in self.right(g)]
            fits = (L for L in grid if lengths and least[level] * sum(n <= L for n in lengths) >= len(lengths))
            self.targets[level] = float(next(fits, self.longest))

    def state_dict(self) -> dict[str, Any]:
        return {"targets": self.targets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.targets = list(state["targets"])


# ---- the methods

adaptive: Any = by_difficulty  # a class that a decorator made a Part

laser = method(
    grpo.but(
        name="laser", title="LASER", paper="arXiv:2505.15612", doc=__doc__, shaping=length_bonus, aggregate=token_mean,
        loss=ppo.but(high=0.28), terms=(kl.but(coef=0.001, kind="k3"), entropy.but(coef=0.001)), minibatches=2,
    )
)  # fmt: skip
laser_d = method(
    laser.but(name="laser-d", title="LASER-D", shaping=adaptive, rollout=monitored, select=targets_of_the_watched)
)
laser_de = method(laser_d.but(name="laser-de", title="LASER-DE", shaping=adaptive.but(explore=True)))
