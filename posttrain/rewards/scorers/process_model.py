"""Step rewards of a learned process reward model, beside the outcome."""

from __future__ import annotations

from typing import Any

import torch

from posttrain.core.protocols import Scorer
from posttrain.core.registry import scorer
from posttrain.core.types import Group, Rollout
from posttrain.rewards.runtime.scorer import NAN, BaseScorer, Verdict, answers_of
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rollouts.step_labels import step_ends


@scorer(title="Process reward model", paper="arXiv:2305.20050")
class ProcessModel(BaseScorer):
    """Process reward model: the reward of each step, on the token that ends it.

    r = 2 sigma(s) - 1;  s: the model's log-odds that the answer so far will end right
    The outcome is `scorer`'s, also as the component `outcome`.
    """

    def __init__(self, scorer: Scorer, model: Any, level: str = "sentence") -> None:
        self.inner, self.model, self.level = scorer, RewardModel(model), level

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts = answers_of(groups)
        ends = [step_ends(self.model.policy, r, self.level) for r in rollouts]
        score_N = self.model.raw([_upto(r, at) for r, some in zip(rollouts, ends, strict=True) for at in some])
        paid = iter((2 * torch.sigmoid(score_N) - 1).tolist())
        out = []
        for r, some in zip(rollouts, ends, strict=True):
            reward_T = torch.zeros(len(r))
            for at in some:
                reward_T[at - 1] = next(paid)
            out.append(Verdict(None, {"outcome": NAN if r.reward is None else r.reward}, reward_T))
        return out


def _upto(r: Rollout, at: int) -> Rollout:
    return r.but_turn(**{k: getattr(r.row, k)[:at] for k in ("actions", "logp_T", "mask_T", "version_T")})
