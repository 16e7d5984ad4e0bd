"""The implicit gradient by hand and by finite differences; the blend; the bi-level loop."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.systems.reward_shaping_safety.barfi import implicit_gradient, outer_loop


def test_quadratic_by_hand() -> None:
    # U = 3 phi - 2 theta: theta = 1.5 phi. J = theta^2: dJ/dphi = 2 theta * 1.5 = 4.5 phi = 9 at phi = 2.
    # With the sign of the inverse flipped it would be -9.
    phi = torch.tensor([2.0], dtype=torch.float64)
    got = implicit_gradient(lambda t: (t**2).sum(), lambda t, p: 3 * p - 2 * t, 1.5 * phi, phi, rate=0.3, terms=200)
    assert got.tolist() == pytest.approx([9.0])


def test_a_short_series_falls_short() -> None:
    # A = 2, rate .25: the sum of `terms` powers of 1/2 is 1 - 2^-terms of the whole: 3/4 of 9 for two terms
    phi = torch.tensor([2.0], dtype=torch.float64)
    got = implicit_gradient(lambda t: (t**2).sum(), lambda t, p: 3 * p - 2 * t, 1.5 * phi, phi, rate=0.25, terms=2)
    assert got.tolist() == pytest.approx([6.75])


def softmax_world() -> tuple:
    """Two states, three actions; the update is the policy gradient of a blend with L2; J is the primary reward."""
    primary = torch.tensor([[1.0, 0.0, 0.2], [0.0, 1.0, 0.0]], dtype=torch.float64)
    aux = torch.tensor([[0.3, 0.9, 0.0], [0.5, 0.1, 0.7]], dtype=torch.float64)

    def outer(theta):
        return (theta.softmax(-1) * primary).sum()

    def update(theta, phi):
        p, worth = theta.softmax(-1), phi[0] * primary + phi[1] * aux
        return p * (worth - (p * worth).sum(-1, keepdim=True)) - 0.3 * theta

    def inner(phi):
        theta = torch.zeros(2, 3, dtype=torch.float64)
        for _ in range(800):
            theta = theta + update(theta, phi)
        return theta

    return outer, update, inner


def test_against_finite_differences_of_the_whole_inner_loop() -> None:
    outer, update, inner = softmax_world()
    phi, h = torch.tensor([0.7, 0.4], dtype=torch.float64), 1e-5
    got = implicit_gradient(outer, update, inner(phi), phi, rate=1.0, terms=400)
    for i in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[i] = h
        slope = float(outer(inner(phi + step)) - outer(inner(phi - step))) / (2 * h)
        assert float(got[i]) == pytest.approx(slope, rel=1e-4)
    assert float(got[0]) > 0 > float(got[1])  # more of the primary reward helps, more of this heuristic does not


def test_the_outer_loop_turns_away_from_a_bad_heuristic() -> None:
    outer, update, inner = softmax_world()
    phi = outer_loop(inner, outer, update, torch.tensor([1.0, 1.0], dtype=torch.float64), rounds=6, rate=1.0)
    assert float(phi.norm()) == pytest.approx(1.0) and float(phi[1]) < 0.1 < float(phi[0])


@pytest.mark.derived("shaping/blend")
def test_blend_by_hand() -> None:
    # .5 + 2 r - 3 aux: r = 1, aux = 2 -> -3.5; r = 0, aux = -1 -> 3.5; the failed row stays failed
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    reward = torch.tensor([[0.0, 1.0], [0.0, 0.0], [math.nan] * 2], dtype=torch.float64)
    batch = Batch(
        logp_BT=torch.zeros_like(mask),
        mask_BT=mask,
        reward_BT=reward,
        **{"reward:aux_B": torch.tensor([2.0, -1.0, 0.0])},
    )
    part = find("blend(phi=(0.5, 2, -3))", "shaping").live()
    got = part(batch)
    assert got[:2].tolist() == [[0.0, -3.5], [3.5, 0.0]] and got[2].isnan().all()
    other = find("blend", "shaping").live()
    torch.testing.assert_close(other(batch)[:2], reward[:2])  # (0, 1, 0) changes nothing
    other.load_state_dict(part.state_dict())
    torch.testing.assert_close(other(batch), got, equal_nan=True)
    with pytest.raises(UserError, match="component"):
        part(batch.but(**{"reward:aux_B": None}))
