"""Is a reward model right, and does it know when it is not? Both from score differences of held-out pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.core.registry import evaluation
from posttrain.core.types import Prompt
from posttrain.rewards.scorers.reward_model import RewardModel


@dataclass(frozen=True)
class Bin:
    """Pairs whose confidence lies between two bounds: how sure the model was of them, and how often it was right."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def margins(model: RewardModel, pairs: list[Prompt]) -> Tensor:
    """margin_P = s(chosen) - s(rejected) as the head gives it: the log-odds that the model claims."""
    written = [model.policy.written(p, p.info[k]) for p in pairs for k in ("chosen", "rejected")]
    score_P2 = model.raw(written).view(-1, 2)
    return score_P2[:, 0] - score_P2[:, 1]


@evaluation(paper="arXiv:2203.02155")
def pair_accuracy(margin_P: Tensor) -> float:
    """Pair accuracy: the share of pairs whose preferred answer scores higher; equal scores count half."""
    if not margin_P.numel():
        return float("nan")
    return float(((margin_P > 0).float() + 0.5 * (margin_P == 0).float()).mean())


def reliability(margin_P: Tensor, bins: int = 10) -> list[Bin]:
    """Confidence c = sigmoid(|margin|) in [1/2, 1], cut into equal bins; those without a pair are left out."""
    confidence_P = torch.sigmoid(margin_P.double().abs())
    right_P = (margin_P > 0).double() + 0.5 * (margin_P == 0).double()
    at_P = ((confidence_P - 0.5) * 2 * bins).long().clamp(0, bins - 1)
    out = []
    for b in range(bins):
        inside = at_P == b
        if inside.any():
            low, high = 0.5 + 0.5 * b / bins, 0.5 + 0.5 * (b + 1) / bins
            sure, right = float(confidence_P[inside].mean()), float(right_P[inside].mean())
            out.append(Bin(low, high, int(inside.sum()), sure, right))
    return out


@evaluation(paper="arXiv:1706.04599")
def expected_calibration_error(margin_P: Tensor, bins: int = 10) -> float:
    """ECE: how far confidence and accuracy are apart, on average over the pairs.

    ECE = sum_b n_b / N |accuracy_b - confidence_b|;  0 says that 70% sure means right 70 times in 100
    """
    found = reliability(margin_P, bins)
    total = sum(b.count for b in found)
    return sum(b.count * abs(b.accuracy - b.confidence) for b in found) / total if total else float("nan")
