"""Step rewards of a learned process reward model, beside the outcome."""

from __future__ import annotations

from typing import Any

import torch

from posttrain.core.types import Group, Rollout
from posttrain.rewards.runtime.score import ScoreReport
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rollouts.step_labels import step_ends


class ProcessModel:
    """A scorer: the outcome by `scorer` (also as the component `outcome`), and on the token that ends each step

    r = 2 sigma(s) - 1;  s: the model's log-odds that the answer so far will end right
    """

    def __init__(self, scorer: Any, model: Any, level: str = "sentence") -> None:
        self.scorer, self.model, self.level = scorer, RewardModel(model), level

    def score(self, groups: list[Group]) -> ScoreReport:
        report: ScoreReport = self.scorer.score(groups)
        rollouts = [r for g in groups for r in g.rollouts]
        ends = [step_ends(self.model.policy, r, self.level) for r in rollouts]
        score_N = self.model.raw([_upto(r, at) for r, some in zip(rollouts, ends, strict=True) for at in some])
        paid = iter((2 * torch.sigmoid(score_N) - 1).tolist())
        for r, some in zip(rollouts, ends, strict=True):
            worth_T = torch.zeros(len(r))
            for at in some:
                worth_T[at - 1] = next(paid)
            r.set_stream("reward", worth_T)
            r.rewards = r.rewards | {"outcome": float("nan") if r.reward is None else r.reward}
        return report


def _upto(r: Rollout, at: int) -> Rollout:
    return r.but_turn(**{k: getattr(r.row, k)[:at] for k in ("actions", "logp_T", "mask_T", "version_T")})
