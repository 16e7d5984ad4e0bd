"""Proxy points by hand: the mix, the step of the multipliers, its sign, its state."""

from __future__ import annotations

import json
import math

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.registry import find

NAN = math.nan


def part(**params):
    return find("proxy_points", "shaping").but(**params).live()


def batch() -> Batch:
    """Two valid answers with a = 1, 3 and b = 0, 2 (the whole reward 1 and 5), and a failed one."""
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    reward = torch.tensor([[0.0, 1.0], [5.0, 0.0], [NAN, NAN]], dtype=torch.float64)
    info = {"reward:a_B": torch.tensor([1.0, 3.0, NAN]), "reward:b_B": torch.tensor([0.0, 2.0, NAN])}
    return Batch(logp_BT=torch.zeros_like(mask), mask_BT=mask, reward_BT=reward, **info)


@pytest.mark.derived("shaping/proxy-points")
def test_multipliers_begin_at_nothing_and_rise_below_the_point() -> None:
    # mean a = 2 below 2.5: mu_a = .5 (2.5 - 2) = .25; mean b = 1 above .8: mu_b = .5 (.8 - 1) = -.1
    it = find("proxy_points", "shaping").but(points={"a": 2.5, "b": 0.8}, lr=0.5).live()
    assert it(batch())[:2].abs().sum() == 0  # tanh(0): this batch is still weighed with the old ones
    assert it.mu == pytest.approx({"a": 0.25, "b": -0.1})
    # row 0: tanh(.25) 1; row 1: tanh(.25) 3 - tanh(.1) 2, on the last own token; the failed row stays failed
    got = it(batch())
    expected = [[0.0, math.tanh(0.25)], [3 * math.tanh(0.25) - 2 * math.tanh(0.1), 0.0]]
    torch.testing.assert_close(got[:2], torch.tensor(expected, dtype=torch.float64))
    assert got[2].isnan().all()


def test_least_never_turns_against_a_component() -> None:
    # sigmoid(0) = 1/2; then mean a = 2, 2 above its point: mu = -2 * 2 = -4, and the weight is still above 0
    it = part(points={"a": 0.0}, kind="least", lr=2.0)
    assert it(batch()).sum(-1)[:2].tolist() == pytest.approx([0.5, 1.5])
    assert it.mu["a"] == pytest.approx(-4.0) and it.weight("a") == pytest.approx(1 / (1 + math.exp(4)))
    assert part(points={"a": 0.0}, lr=2.0).weight("a") == 0.0


def test_the_whole_reward_is_a_component() -> None:
    # mean reward 3, point .5: mu = .1 (.5 - 3) = -.25
    it = part(points={"reward": 0.5})
    it(batch())
    assert it.mu == pytest.approx({"reward": -0.25})
    with pytest.raises(UserError, match="no point is given"):
        part()(batch())


def test_fixed_point_is_the_proxy_point() -> None:
    # a component whose mean is w itself: mean = tanh(mu), so mu settles where tanh(mu) = .5
    it = part(points={"a": 0.5}, lr=0.5)
    for _ in range(200):
        x = it.weight("a")
        it(batch().but(**{"reward:a_B": torch.tensor([x, x, NAN])}))
    assert it.weight("a") == pytest.approx(0.5, abs=1e-4)


def test_a_batch_of_failures_teaches_nothing_and_state_resumes() -> None:
    it = part(points={"a": 2.5})
    it(batch().but(mask_BT=torch.zeros(3, 2, dtype=torch.float64)))
    assert it.mu == {"a": 0.0}
    it(batch())
    other = part(points={"a": 2.5})
    other.load_state_dict(json.loads(json.dumps(it.state_dict())))
    torch.testing.assert_close(it(batch()), other(batch()), equal_nan=True)
    assert it.mu == other.mu != {"a": 0.0}


def test_errors() -> None:
    with pytest.raises(UserError, match="did you mean 'a'"):
        part(points={"aa": 1.0})(batch())
    with pytest.raises(UserError, match="equal"):
        part(kind="most")
