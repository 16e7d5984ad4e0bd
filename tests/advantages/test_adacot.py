"""Selective loss masking: credit by hand, no gradient on the one token that decides, the critic's target untouched."""

from __future__ import annotations

import pytest
import torch

from posttrain.advantages.gae import gae
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.losses.policy.ppo import ppo
from posttrain.systems.efficient_reasoning.adacot import without_the_decision as adacot


def batch() -> Batch:
    """Row 0: three own tokens, outcome 1. Row 1: a token of others first, then two own ones, outcome 0."""
    rows = {
        "mask_BT": [[1, 1, 1], [0, 1, 1]], "reward_BT": [[0, 0, 1], [0, 0, 0]], "old_value_BT": [[0.5, 0.5, 0.5], [9, 0.4, 0.2]],
        "logp_BT": [[-1, -1, -1], [-1, -1, -1]], "old_logp_BT": [[-1, -1, -1], [-1, -1, -1]],
    }  # fmt: skip
    return Batch(**{k: torch.tensor(x, dtype=torch.float64) for k, x in rows.items()})


@pytest.mark.derived("advantage/adacot")
@pytest.mark.parametrize(
    ("at", "expected"),
    [
        # gamma = lam = 1: A = return - value: row 0: 1 - .5 = .5 thrice; row 1: 0 - .4, 0 - .2
        (0, [[0, 0.5, 0.5], [0, 0, -0.2]]),  # the first own token: of row 1 the second
        (1, [[0.5, 0, 0.5], [0, -0.4, 0]]),
        (5, [[0.5, 0.5, 0.5], [0, -0.4, -0.2]]),  # nobody wrote that many: plain GAE
    ],
)
def test_credit_by_hand(at: int, expected: list[list[float]]) -> None:
    adv_BT, return_BT = adacot(batch(), at=at, lam=1.0, whiten=False)
    torch.testing.assert_close(adv_BT, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(return_BT[batch().mask_BT > 0], torch.tensor([1.0, 1, 1, 0, 0], dtype=torch.float64))


def test_all_but_that_token_is_gae() -> None:
    adv_BT, base_BT = adacot(batch(), at=1)[0], gae(batch())[0]
    other_BT = torch.tensor([[True, False, True], [True, True, False]])
    torch.testing.assert_close(adv_BT[other_BT], base_BT[other_BT])
    assert bool((base_BT[~other_BT] != 0).all()) and bool((adv_BT[~other_BT] == 0).all())


@pytest.mark.derived("advantage/adacot")
def test_the_decision_has_no_gradient_and_the_rest_has() -> None:
    b = batch()
    logp_BT = b.logp_BT.clone().requires_grad_()
    loss_BT = ppo(b.but(logp_BT=logp_BT, adv_BT=adacot(b, at=0, lam=1.0, whiten=False)[0]))
    (loss_BT * b.mask_BT).sum().backward()
    # on policy dL/dlogp = -A
    assert logp_BT.grad is not None
    torch.testing.assert_close(logp_BT.grad, torch.tensor([[0, -0.5, -0.5], [0, 0, 0.2]], dtype=torch.float64))


@pytest.mark.derived("advantage/adacot")
def test_the_decision_is_found_in_the_text() -> None:
    # row 0: two tokens open the tag, the third, in the thought, decides. Row 1: the template opened it, so that the first own
    # token decides, here the tag that closes at once; a row without a thought keeps all of its credit
    told = batch().but(thought_BT=torch.tensor([[0, 0, 1], [1, 2, 3]]))
    expected = torch.tensor([[0.5, 0.5, 0], [0, 0, -0.2]], dtype=torch.float64)
    torch.testing.assert_close(adacot(told, lam=1.0, whiten=False)[0], expected)
    none = batch().but(thought_BT=torch.zeros(2, 3).long())
    torch.testing.assert_close(adacot(none, whiten=False)[0], gae(none, whiten=False)[0])


def test_a_place_before_the_first_token_is_an_error() -> None:
    with pytest.raises(UserError, match="at is -1"):
        adacot(batch(), at=-1)
