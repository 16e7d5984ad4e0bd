"""A learned reward: a policy with a score head, asked about the very tokens that were sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy
from posttrain.core.registry import scorer
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.runtime.scorer import BaseScorer, ScoreReport, Verdict, answers_of, as_number, finite, report_of

_TINY = 1e-6  # a model that gives everything the same score scales nothing


@scorer(title="Reward model", paper="arXiv:2203.02155")
class RewardModel(BaseScorer):
    """Reward model: the score of an answer in units of a reference set: R = (s - mean) / std.

    As a scorer (`score`) it reads tokens and never encodes a text again; called with (prompts, texts) it is a reward
    like any other, which can be summed with rules in a RewardSum.
    """

    def __init__(self, policy: Policy, mean: float = 0.0, std: float = 1.0, name: str = "reward_model") -> None:
        if getattr(policy, "score", None) is None:
            raise UserError("this policy has no score head; make one with policy.as_reward_model()")
        self.policy, self.mean, self.std, self.name = policy, mean, max(std, _TINY), name
        self.reported = (name,)

    @torch.no_grad()
    def raw(self, rollouts: Sequence[Rollout], tokens: int = 32768) -> Tensor:
        """score_B as the head gives it, in pieces of so many padded tokens; NaN where an answer is longer than the window."""
        was = self.policy.training
        self.policy.eval()
        window = getattr(self.policy, "window", 0) or math.inf
        length = [len(r.context) + len(r) for r in rollouts]
        order = sorted((i for i, n in enumerate(length) if n <= window), key=length.__getitem__)
        score_B = torch.full((len(rollouts),), math.nan)
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
        score_B = score_B[~score_B.isnan()]
        return RewardModel(self.policy, float(score_B.mean()), float(score_B.std(correction=0)), self.name)

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        """By the tokens as they were sampled; a score that is not finite masks its answer."""
        return [Verdict(x, {self.name: x}) for x in self.scores(answers_of(groups)).tolist()]

    def texts(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> tuple[list[float], ScoreReport]:
        found = [as_number(x) for x in self(prompts, texts)]
        report = report_of(self.name, found, 0.0)
        return [finite(x) for x in found], ScoreReport(len(found), report.failed, 0.0, [report])

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
