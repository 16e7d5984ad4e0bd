"""Several live reward models as one scorer: each reads the answer, and their scores are combined (rewards/scorers/ensemble.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.core.registry import scorer
from posttrain.core.types import Group, Rollout
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of
from posttrain.rewards.scorers.ensemble import combine, statistics
from posttrain.rewards.scorers.reward_model import RewardModel

Stats = tuple[Tensor, Tensor]


@scorer(title="Combined reward models", paper="arXiv:2310.02743")
class Combined(BaseScorer):
    """Combined reward models: R = how(z_1 ... z_K) of K members, each in units of a reference set: z_k = (s_k - mean_k) / std_k.

    how: a name of COMBINE (mean, median, worst_case, uncertainty_weighted, mean_minus_std), with its own parameters. The
    components member0, member1 ... are the z_k. An answer that some member could not read is masked. by_text: members
    have tokenizers of their own and read the text; else they read the tokens as they were sampled.
    """

    def __init__(
        self, models: Sequence[RewardModel], how: str = "mean", stats: Stats | None = None, by_text: bool = False,
        **params: Any,
    ) -> None:  # fmt: skip
        self.models, self.how, self.by_text, self.params = list(models), how, by_text, params
        K = len(self.models)
        self.stats = stats or (torch.zeros(K, 1), torch.ones(K, 1))
        self.reported = ("combined",)
        combine(torch.zeros(K, 1), how, self.stats, **params)  # refuses a name or a parameter that does not exist

    def raw(self, rollouts: Sequence[Rollout]) -> Tensor:
        """score_KB as the heads give them."""
        if not self.by_text:
            return torch.stack([m.raw(rollouts) for m in self.models])
        told = [[m.policy.written(r.prompt, r.text) for r in rollouts] for m in self.models]
        return torch.stack([m.raw(rows) for m, rows in zip(self.models, told, strict=True)])

    def centred(self, rollouts: Sequence[Rollout]) -> Combined:
        """The same members, each with the mean 0 and the standard deviation 1 over these answers."""
        score_KB = self.raw(rollouts)
        read_KB = score_KB[:, ~score_KB.isnan().any(0)]
        return Combined(self.models, self.how, statistics(read_KB), self.by_text, **self.params)

    def units(self, rollouts: Sequence[Rollout]) -> Tensor:
        """z_KB: each member in its own units."""
        mean_K1, std_K1 = self.stats
        return (self.raw(rollouts) - mean_K1) / std_K1.clamp_min(1e-6)

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        z_KB = self.units(answers_of(groups))
        plain = (torch.zeros(len(z_KB), 1), torch.ones(len(z_KB), 1))
        total_B = combine(z_KB, self.how, plain, **self.params)
        total_B[z_KB.isnan().any(0)] = math.nan
        return [
            Verdict(total, {"combined": total, **{f"member{k}": x for k, x in enumerate(z)}})
            for total, z in zip(total_B.tolist(), z_KB.T.tolist(), strict=True)
        ]
