"""Accuracy and calibration of a reward model, at margins whose sigmoid is a round number."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.types import Prompt
from posttrain.evals.reward_model import expected_calibration_error, margins, pair_accuracy, reliability
from posttrain.rewards.scorers.reward_model import RewardModel
from tests.runs import tiny_run

LOG3, LOG9 = math.log(3), math.log(9)  # sigmoid(log 3) = 3/4, sigmoid(log 9) = 9/10


@pytest.mark.derived("eval/pair-accuracy")
def test_accuracy_counts_equals_half() -> None:
    assert pair_accuracy(torch.tensor([2.0, -1.0, 0.0, 0.5])) == (1 + 0 + 0.5 + 1) / 4
    assert math.isnan(pair_accuracy(torch.tensor([])))


def test_reliability_bins() -> None:
    """Two bins of width 1/4: 0.75 falls on the border and belongs to the upper one, with 0.9; 0.5 to the lower one.

    lower: confidence 0.5, an equal pair counts half right; upper: (3/4 + 3/4 + 9/10)/3 = 0.8 sure, 2 of 3 right.
    """
    border = torch.tensor([0.0, LOG3, -LOG3, LOG9], dtype=torch.float64) * (1 + 1e-12)
    low, high = reliability(border, bins=2)
    assert (low.low, low.high, low.count, low.confidence, low.accuracy) == (0.5, 0.75, 1, 0.5, 0.5)
    assert (high.low, high.high, high.count) == (0.75, 1.0, 3)
    assert high.confidence == pytest.approx(0.8) and high.accuracy == pytest.approx(2 / 3)


@pytest.mark.derived("eval/expected-calibration-error")
def test_calibration_error() -> None:
    """Ten pairs at 0.9, nine right: calibrated, 0. The same confidence and all wrong: |0 - 0.9| = 0.9."""
    margin_P = torch.full((10,), LOG9)
    margin_P[0] = -LOG9
    assert expected_calibration_error(margin_P) == pytest.approx(0.0, abs=1e-6)
    assert expected_calibration_error(torch.full((10,), -LOG9)) == pytest.approx(0.9, abs=1e-6)
    # half of the pairs at 0.9 with 9/10 right (error 0), half at 3/4 all right (error 1/4): 1/2 * 0 + 1/2 * 1/4
    both = torch.cat([margin_P, torch.full((10,), LOG3)])
    assert expected_calibration_error(both) == pytest.approx(0.125, abs=1e-6)


def test_a_very_sure_model_has_a_bin() -> None:
    assert [b.count for b in reliability(torch.tensor([100.0, 100.0]))] == [2]


def test_margins_are_differences_of_scores() -> None:
    model = tiny_run.policy().as_reward_model()
    with torch.no_grad():
        model.score.out.weight.normal_(generator=torch.Generator().manual_seed(0))
    p = Prompt.text("a", "write a", None, chosen="aaa", rejected="bb")
    q = Prompt.text("b", "write b", None, chosen="bbbb", rejected="b")
    found = margins(RewardModel(model, mean=3.0, std=7.0), [p, q])  # centring must not change the log-odds
    for x, prompt in zip(found.tolist(), (p, q), strict=True):
        s = [
            float(model.forward([model.written(prompt, prompt.info[k])], ("score_B",))["score_B"])
            for k in ("chosen", "rejected")
        ]
        assert x == pytest.approx(s[0] - s[1], abs=1e-5)
        assert abs(x) > 1e-3
