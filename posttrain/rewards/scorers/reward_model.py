"""A learned reward: a policy with a score head, asked about the very tokens that were sampled."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.runtime.score import RewardReport, ScoreReport

_TINY = 1e-6  # a model that gives everything the same score scales nothing


class RewardModel:
    """The score of an answer in units of a reference set: R = (s - mean) / std.

    As a scorer (`score`) it reads tokens and never encodes a text again; called with (prompts, texts) it is a reward
    like any other, which can be summed with rules in a Scorer.
    """

    def __init__(self, policy: Any, mean: float = 0.0, std: float = 1.0, name: str = "reward_model") -> None:
        if getattr(policy, "score", None) is None:
            raise UserError("this policy has no score head; make one with policy.as_reward_model()")
        self.policy, self.mean, self.std, self.name = policy, mean, max(std, _TINY), name

    @torch.no_grad()
    def raw(self, rollouts: Sequence[Rollout], tokens: int = 32768) -> Tensor:
        """score_B as the head gives it, in pieces of so many padded tokens."""
        was = self.policy.training
        self.policy.eval()
        order = sorted(range(len(rollouts)), key=lambda i: len(rollouts[i].context) + len(rollouts[i]))
        score_B = torch.zeros(len(rollouts))
        for index in _pieces(order, rollouts, tokens):
            score_B[index] = self.policy.forward([rollouts[i] for i in index], ("score_B",))["score_B"].float().cpu()
        self.policy.train(was)
        return score_B

    def scores(self, rollouts: Sequence[Rollout]) -> Tensor:
        """The reward of each rollout."""
        return (self.raw(rollouts) - self.mean) / self.std

    def centred(self, rollouts: Sequence[Rollout]) -> RewardModel:
        """The same model with the mean 0 and the standard deviation 1 over these answers (the reference policy's)."""
        score_B = self.raw(rollouts)
        return RewardModel(self.policy, float(score_B.mean()), float(score_B.std(correction=0)), self.name)

    def score(self, groups: list[Group]) -> ScoreReport:
        """Rewards into the rollouts; a score that is not finite masks its answer."""
        began = time.perf_counter()
        rollouts = [r for g in groups for r in g.rollouts]
        for r, x in zip(rollouts, self.scores(rollouts).tolist(), strict=True):
            r.reward = x if math.isfinite(x) else math.nan
            r.rewards = {self.name: r.reward}
        good = [r.reward for r in rollouts if r.reward is not None and not r.failed]
        mean, bad, seconds = math.fsum(good) / max(len(good), 1), len(rollouts) - len(good), time.perf_counter() - began
        report = RewardReport(self.name, len(rollouts), bad, mean=mean if good else math.nan, seconds=seconds)
        return ScoreReport(len(rollouts), bad, seconds, [report])

    def __call__(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        return self.scores([self.policy.written(p, t) for p, t in zip(prompts, texts, strict=True)]).tolist()


def _pieces(order: list[int], rollouts: Sequence[Rollout], tokens: int) -> list[list[int]]:
    """Runs of the order (short ones first) whose padded size is within the limit."""
    out: list[list[int]] = [[]]
    for i in order:
        length = len(rollouts[i].context) + len(rollouts[i])
        if out[-1] and length * (len(out[-1]) + 1) > tokens:
            out.append([])
        out[-1].append(i)
    return out if out[-1] else []
