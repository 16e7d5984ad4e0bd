"""Posts to summarise: facts of known importance that follow each other well or badly, and people who write references."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from claims.worlds.tabular import TabularPolicy
from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.core.types import Rollout
from posttrain.runs.in_memory import Listed, row

FACTS, SAID, THEMES = 10, 3, 10  # a post has 10 facts, a summary tells 3; 10 numbers say what a post is about
TRAIN, TEST = 256, 256
LEAD = 0.5  # how much less each later fact of a post tempts those who write references
TOLD_NT = torch.cartesian_prod(*[torch.arange(FACTS)] * SAID)  # every summary there is


class Posts:
    """Posts, references that people wrote, and what people value: important facts, each once, that follow well."""

    def __init__(self, seed: int) -> None:
        draws = rng.torch_generator("summarize", seed)
        themes_PF = torch.randn(TRAIN + TEST, THEMES, generator=draws)
        self.importance_PV: Tensor = themes_PF @ torch.randn(THEMES, FACTS, generator=draws) / THEMES**0.5
        self.flow_VV = 0.5 * torch.randn(FACTS, FACTS, generator=draws)
        self.features_PF = torch.cat([torch.ones(TRAIN + TEST, 1), themes_PF], 1)
        posts = [row(p) for p in range(TRAIN + TEST)]
        self.references = [r[0] for r in self.writer().sample(posts, 1, Sampling(), seed, -1)]
        self.posts = [
            replace(p, info=p.info | {"demonstration": r.text}) for p, r in zip(posts, self.references, strict=True)
        ]

    def writer(self) -> TabularPolicy:
        """Feels what matters and what flows, but likes the first facts of a post too much."""
        liked_PV = self.importance_PV - LEAD * torch.arange(FACTS)
        who = TabularPolicy(TRAIN + TEST, SAID, FACTS)
        with torch.no_grad():
            who.table.copy_(liked_PV[:, None, None].expand_as(who.table))
            who.table[:, 1:, :FACTS] += self.flow_VV
        return who

    def blank(self) -> TabularPolicy:
        """A summariser that knows nothing yet."""
        return TabularPolicy(TRAIN + TEST, SAID, FACTS, features_PF=self.features_PF)

    def worth(self, rollouts: list[Rollout]) -> Tensor:
        """Importance of the different facts told, and flow from each to the next."""
        told_BT, row_B = torch.stack([r.actions for r in rollouts]), torch.cat([r.context for r in rollouts])
        return (once(told_BT) * self.importance_PV[row_B]).sum(-1) + self.flow(told_BT)

    def flow(self, told_BT: Tensor) -> Tensor:
        return self.flow_VV[told_BT[:, :-1], told_BT[:, 1:]].sum(-1)

    def overlap(self, rollouts: list[Rollout]) -> Tensor:
        """ROUGE's part: the share of the reference's facts that a summary repeats."""
        ref_BT = torch.stack([self.references[int(r.context)].actions for r in rollouts])
        return once(torch.stack([r.actions for r in rollouts])).gather(1, ref_BT).mean(-1)

    def train(self) -> Listed:
        return Listed(self.posts[:TRAIN])


def once(told_BT: Tensor) -> Tensor:
    """Which facts a summary tells (B, V): 1 or 0, however often."""
    return torch.zeros(len(told_BT), FACTS).scatter_(1, told_BT, 1.0)


def held_out(policy: TabularPolicy, table_FTWV: Tensor) -> Tensor:
    """A table as it stands for the test posts (P, T, W, V)."""
    return torch.einsum("pf,ftwv->ptwv", policy.features_PF[TRAIN:], table_FTWV)


def summed(table_PTWV: Tensor) -> Tensor:
    """Every summary's sum of entries, letter by letter (P, N)."""
    before_NT = torch.cat([torch.full_like(TOLD_NT[:, :1], FACTS), TOLD_NT[:, :-1]], 1)
    return table_PTWV[:, torch.arange(SAID), before_NT, TOLD_NT].sum(-1)
