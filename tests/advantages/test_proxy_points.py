"""Credit at proxy points by hand: the mix, the step of the multipliers, its sign, its state."""

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
    return find("proxy_points", "advantage").but(**params).live()


def batch(a: float = 2.5, b: float = 0.8) -> Batch:
    """Two valid answers of one token with a = 1, 3 and b = 0, 2 and log ratios 0.2, 0.6, and a failed one; points a and b."""
    mask = torch.tensor([[1.0], [1.0], [0.0]], dtype=torch.float64)
    info = {"reward:a_B": torch.tensor([1.0, 3.0, NAN]), "reward:b_B": torch.tensor([0.0, 2.0, NAN])}
    info |= {"reward:point-a_B": torch.tensor([a, a, NAN]), "reward:point-b_B": torch.tensor([b, b, NAN])}
    old = torch.tensor([[0.2], [0.6], [0.0]], dtype=torch.float64)
    values = torch.zeros(3, 1, 3, dtype=torch.float64)
    values[0, 0] = torch.tensor([0.5, 0.0, 0.0])
    return Batch(
        logp_BT=torch.zeros_like(mask), mask_BT=mask, reward_BT=torch.tensor([[1.0], [5.0], [NAN]], dtype=torch.float64),
        old_logp_BT=old, ref_logp_BT=torch.zeros_like(mask), old_value_BTK=values, **info,
    )  # fmt: skip


@pytest.mark.derived("advantage/proxy-points")
def test_the_mix_and_the_step_of_the_multipliers() -> None:
    # one token each, so A_k = r_k - V_k: a: .5, 3; b: 0, 2; KL: -.2, -.6. Whitened over two tokens each is -1, 1 or 1, -1.
    # mu = 0: weights 0, 0 and 2 - 0 of the KL: 2, -2. Then mean a = 2 below 2.5: mu_a = .5 * 1 * .5 = .25;
    # mean b = 1 above .8: mu_b = .5 * (-.2) = -.1
    it = part(rewards=("a", "b"), lr=0.5)
    adv, target = it(batch())
    torch.testing.assert_close(adv[:2, 0], torch.tensor([2.0, -2.0], dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(target[0, 0], torch.tensor([1.0, 0.0, -0.2], dtype=torch.float64))
    assert it.mu == pytest.approx({"a": 0.25, "b": -0.1}, abs=1e-6)
    # w_a = tanh .25 = .244919, w_b = -tanh .1 = -.099668, of the KL 2 - .145251 = 1.854749; row 0: -w_a - w_b + w_KL
    adv, _ = it(batch())
    assert adv[0, 0].item() == pytest.approx(-0.244919 + 0.099668 + 1.854749, abs=1e-5) and adv[2].abs().sum() == 0
    # the slope of tanh at .25 is 1 - .244919^2 = .940015: mu_a = .25 + .5 * .940015 * .5
    assert it.mu["a"] == pytest.approx(0.25 + 0.235004, abs=1e-5)


def test_least_never_turns_against_a_component() -> None:
    # sigmoid(0) = 1/2, slope 1/4; mean a = 2 is 2 above its point: mu = -8 * 1/4 * 2 = -4, and the weight is still above 0
    it = part(rewards=("a", "b"), kind="least", lr=8.0)
    assert it.weight("a") == 0.5
    it(batch(a=0.0))
    assert it.mu["a"] == pytest.approx(-4.0) and it.weight("a") == pytest.approx(1 / (1 + math.exp(4)))


def test_fixed_point_is_the_proxy_point() -> None:
    # a component whose mean is w itself: mean = tanh(mu), so mu settles where tanh(mu) = .5
    it = part(rewards=("a", "b"), lr=0.5)
    for _ in range(200):
        x = it.weight("a")
        it(batch(a=0.5).but(**{"reward:a_B": torch.tensor([x, x, NAN])}))
    assert it.weight("a") == pytest.approx(0.5, abs=1e-3)


def test_a_batch_of_failures_teaches_nothing_and_state_resumes() -> None:
    it = part(rewards=("a", "b"))
    it(batch().but(mask_BT=torch.zeros(3, 1, dtype=torch.float64)))
    assert it.mu == {"a": 0.0, "b": 0.0}
    it(batch())
    other = part(rewards=("a", "b"))
    other.load_state_dict(json.loads(json.dumps(it.state_dict())))
    torch.testing.assert_close(it(batch()), other(batch()))
    assert it.mu == other.mu != {"a": 0.0, "b": 0.0}


def test_errors() -> None:
    with pytest.raises(UserError, match="3 critics for 1 rewards and the KL"):
        part(rewards=("a",))(batch())
    with pytest.raises(UserError, match="equal"):
        part(kind="most")
