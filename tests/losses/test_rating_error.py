"""DPA's regression by hand, and how directions are drawn and compared."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.conditioning import Directions
from posttrain.losses.aggregate import Totals, sequence_sum
from posttrain.losses.objective import objective
from posttrain.systems.supervised_from_reward.dpa import direction, rating_error, toward
from tests.losses.table import batch_of


@pytest.mark.derived("supervised_loss/rating-error")
def test_the_mean_over_answers_of_squared_errors() -> None:
    # an answer of 2 tokens: scores (1, 0), ratings (3, 1): 4 + 1 = 5, 2.5 at each token; one of 1 token: (0, 2), (0, 0): 4
    # L = (5 + 4) / 2 = 4.5;  dL/ds = 2 (s - r) / 2 = (-2, -1) and (0, 2)
    scores_BK = torch.tensor([[1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    batch = batch_of([[-1.0, -1.0], [-1.0]]).but(scores_BK=scores_BK, rating_BK=torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    torch.testing.assert_close(rating_error(batch).detach().float(), torch.tensor([[2.5, 2.5], [4.0, 0.0]]))
    loss, _ = objective(batch, Totals.of(batch), rating_error, sequence_sum)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(4.5)
    torch.testing.assert_close(scores_BK.grad, torch.tensor([[-2.0, -1.0], [0.0, 2.0]]))


def test_directions_are_unit_vectors_within_45_degrees_evenly_by_angle() -> None:
    how = Directions(("a", "b"))
    drawn = [direction(how, 0, i) for i in range(2000)]
    angles = [math.degrees(math.atan2(v[1], v[0])) for v in drawn]
    assert all(math.hypot(*v) == pytest.approx(1) for v in drawn) and max(map(abs, angles)) <= 45
    for low in range(-45, 45, 15):  # a sixth of them in every 15 degrees
        assert sum(low <= x < low + 15 for x in angles) / 2000 == pytest.approx(1 / 6, abs=0.03)
    assert direction(how, 0, 5) == direction(how, 0, 5) != direction(how, 0, 6)
    three = direction(Directions(("a", "b", "c")), 1)
    assert sum(x * x for x in three) == pytest.approx(1) and three[0] >= math.cos(math.radians(45))


def test_worth_is_the_product_with_rewards_in_deviations() -> None:
    # (10 - 8) / 2 = 1 and (0 - 1) / 0.5 = -2: 0.8 * 1 + -0.6 * -2 = 2
    assert toward((0.8, -0.6), (10.0, 0.0), [[8.0, 2.0], [1.0, 0.5]]) == pytest.approx(2.0)
