"""Preference pairs that nobody trained on: how often the preferred answer is ranked above the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from posttrain.core.protocols import Policy
from posttrain.core.types import Prompt, Rollout
from posttrain.evals.accuracy import Score

_AT_ONCE = 32  # pairs of one forward pass


@torch.no_grad()
def ranking(policy: Policy, prompts: Sequence[Prompt]) -> Score:
    """The share of pairs with s(chosen) > s(rejected); equals count half, and of no pairs it is nan.

    s is the score of a reward model, else log pi(y | x), the whole answer's log-probability; margin is the mean of
    s(chosen) - s(rejected). rollouts are the preferred answers, each worth 1, 1/2 or 0.
    """
    chosen: list[Rollout] = []
    margins: list[float] = []
    for start in range(0, len(prompts), _AT_ONCE):
        some = prompts[start : start + _AT_ONCE]
        written = [policy.written(p, p.info[k]) for p in some for k in ("chosen", "rejected")]
        for better, worse, s in zip(written[::2], written[1::2], worth(policy, written).view(-1, 2).tolist()):
            better.reward, worse.reward = [0.5 + 0.5 * ((a > b) - (a < b)) for a, b in (s, s[::-1])]
            chosen.append(better)
            margins.append(s[0] - s[1])
    grades = [r.reward or 0.0 for r in chosen]
    mean = sum(grades) / len(grades) if grades else math.nan
    var = sum((g - mean) ** 2 for g in grades) / max(len(grades) - 1, 1)
    tokens = sum(len(r) for r in chosen) / max(len(chosen), 1)
    margin = sum(margins) / len(margins) if margins else math.nan
    return Score(mean, math.sqrt(var / max(len(grades), 1)), len(chosen), tokens, chosen, of="pairs", margin=margin)


def worth(policy: Policy, written: list[Rollout]) -> torch.Tensor:
    """s of each answer: the reward model's score, or the sum of its tokens' log-probabilities."""
    if getattr(policy, "score", None) is not None:
        return policy.forward(written, ("score_B",))["score_B"].float().cpu()
    return policy.forward(written, ("logp_BT",))["logp_BT"].sum(-1).float().cpu()
