"""Preference losses: tables by hand, a second derivation in plain floats, equivalences."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.losses.preference.dpo import dpo
from posttrain.losses.preference.margin import margin
from posttrain.systems.preference.hinge import hinge_loss as hinge
from posttrain.systems.preference.ipo import ipo_loss as ipo
from posttrain.systems.preference.robust_dpo import robust_loss as robust_dpo
from tests.losses.table import batch_of, inside, slopes, value_and_gradient

# One pair. Chosen, two tokens: log-ratios .5 and .5, sum 1, mean .5. Rejected, one token: log-ratio -1.
# So u = 1 - (-1) = 2, and length-normalised u = .5 - (-1) = 1.5. du/dlogp = 1 at chosen tokens, -1 at rejected ones.
LOGP, REF = [[-1.0, -2.0], [-3.0]], [[-1.5, -2.5], [-2.0]]
LOW, HIGH = math.log1p(math.exp(-1)), math.log1p(math.exp(1))  # -log sigmoid(1) = .3133, -log sigmoid(-1) = 1.3133
S = 1 / (1 + math.e)  # sigmoid(-1) = .2689


def pair():
    return batch_of(LOGP, pairs=[(0, 1)], ref_logp=REF)


def test_margin() -> None:
    assert margin(pair()).tolist() == [2.0]
    assert margin(pair(), mean=True).tolist() == [1.5]


@pytest.mark.derived(
    "preference_loss/dpo", "preference_loss/ipo", "preference_loss/hinge", "preference_loss/robust-dpo"
)
@pytest.mark.parametrize(
    ("part", "params", "loss", "slope"),  # slope = dloss/du
    [
        (dpo, {"beta": 0.5}, LOW, -0.5 * S),  # beta u = 1; -beta sigmoid(-1)
        (dpo, {}, math.log1p(math.exp(-0.2)), -0.1 / (1 + math.exp(0.2))),  # the paper's beta = .1
        (dpo, {"beta": 0.5, "label_smoothing": 0.25}, 0.75 * LOW + 0.25 * HIGH, 0.5 * (-0.75 * S + 0.25 * (1 - S))),
        (ipo, {"length_normalised": False}, 9.0, -6.0),  # target 1/(2 * .1) = 5: (2 - 5)^2, 2 (2 - 5)
        (ipo, {"beta": 0.5, "length_normalised": False}, 1.0, 2.0),  # target 1, overshot: the gradient turns back
        (hinge, {}, 0.9, -0.05),  # 1 - .05 * 2
        (hinge, {"beta": 1.0}, 0.0, 0.0),  # 1 - 2 < 0: safe
        (robust_dpo, {"beta": 0.5}, (0.9 * LOW - 0.1 * HIGH) / 0.8, -0.5 * (0.9 * S + 0.1 * (1 - S)) / 0.8),
    ],
)
def test_table(part, params, loss, slope) -> None:
    batch = pair()
    loss_P, grad_BT = value_and_gradient(part, batch, **params)
    torch.testing.assert_close(loss_P.tolist(), [loss], rtol=1e-12, atol=1e-12)
    expected = [[slope, slope], [-slope]]
    torch.testing.assert_close(inside(grad_BT, batch), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.derived("preference_loss/ipo")
def test_ipo_takes_means_over_tokens_unless_told_otherwise() -> None:
    # u of means = 1.5 (`test_margin`), target 5: (1.5 - 5)^2, and 2 (1.5 - 5) shared by the two tokens of the chosen answer
    loss_P, grad_BT = value_and_gradient(ipo, pair())
    assert loss_P.tolist() == [12.25] and inside(grad_BT, pair()) == [[-3.5, -3.5], [7.0]]


@pytest.mark.derived("preference_loss/dpo")
def test_length_normalised_divides_each_answer_by_its_own_length() -> None:
    # u = 1.5, beta u = .75 at beta = .5; the slope is shared by the two chosen tokens, the rejected one has it all
    batch = pair()
    loss_P, grad_BT = value_and_gradient(dpo, batch, beta=0.5, length_normalised=True)
    slope = -0.5 / (1 + math.exp(0.75))
    torch.testing.assert_close(loss_P.tolist(), [math.log1p(math.exp(-0.75))], rtol=1e-12, atol=0)
    torch.testing.assert_close(inside(grad_BT, batch), [[slope / 2, slope / 2], [-slope]], rtol=1e-12, atol=0)
    for part, params, expected in [(ipo, {}, (1.5 - 5) ** 2), (hinge, {}, 0.925)]:
        assert part(batch, length_normalised=True, **params).item() == pytest.approx(expected, rel=1e-12)
    robust = robust_dpo(batch, beta=0.5, flip_rate=0.0, length_normalised=True)
    assert robust.item() == pytest.approx(loss_P.item(), rel=1e-12)


# ---- plain floats: three pairs that share no rows in order, unequal lengths

ROWS = [[-0.4, -1.2, -2.2], [-0.7], [-3.0, -0.1], [-1.0, -1.0, -1.0, -5.0], [-0.2], [-2.0, -2.5]]
REFS = [[-0.6, -1.0, -3.0], [-0.2], [-2.0, -0.9], [-1.5, -0.8, -1.1, -1.0], [-0.9], [-0.5, -2.0]]
PAIRS = [(0, 3), (5, 1), (2, 4)]


def log_sigmoid(x: float) -> float:
    return -math.log(1 + math.exp(-x))


FORMULAS = {
    "dpo": (dpo, {}, lambda u: -log_sigmoid(0.1 * u)),
    "cdpo": (dpo, {"label_smoothing": 0.2}, lambda u: -0.8 * log_sigmoid(0.1 * u) - 0.2 * log_sigmoid(-0.1 * u)),
    "ipo": (ipo, {"beta": 0.4}, lambda u: (u - 1.25) ** 2),
    "hinge": (hinge, {"beta": 0.3}, lambda u: max(0.0, 1 - 0.3 * u)),
    "robust": (robust_dpo, {"beta": 1.0}, lambda u: -0.9 / 0.8 * log_sigmoid(u) + 0.1 / 0.8 * log_sigmoid(-u)),
}


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("name", FORMULAS)
def test_against_plain_floats(name: str, mean: bool) -> None:
    part, params, formula = FORMULAS[name]

    def losses(rows):
        ratios = [sum(p - r for p, r in zip(row, ref, strict=True)) for row, ref in zip(rows, REFS, strict=True)]
        if mean:
            ratios = [x / len(row) for x, row in zip(ratios, rows, strict=True)]
        return [formula(ratios[best] - ratios[worst]) for best, worst in PAIRS]

    batch = batch_of(ROWS, pairs=PAIRS, ref_logp=REFS)
    loss_P, grad_BT = value_and_gradient(part, batch, length_normalised=mean, **params)
    torch.testing.assert_close(loss_P.tolist(), losses(ROWS), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(inside(grad_BT, batch), slopes(lambda r: sum(losses(r)), ROWS), rtol=1e-6, atol=1e-7)


# ---- equivalences


def three_pairs():
    return batch_of(ROWS, pairs=PAIRS, ref_logp=REFS)


def test_robust_without_flips_is_dpo() -> None:
    robust = value_and_gradient(robust_dpo, three_pairs(), flip_rate=0.0)
    torch.testing.assert_close(robust, value_and_gradient(dpo, three_pairs()), rtol=1e-12, atol=1e-15)


def test_robust_is_unbiased_under_flips() -> None:
    # labels flip with probability e: (1 - e) L(w, l) + e L(l, w) = dpo on the true labels, in value and gradient
    true = three_pairs()
    flipped = true.but(chosen_P=true["rejected_P"], rejected_P=true["chosen_P"])
    for e in (0.1, 0.3, 0.45):
        seen, wrong = (value_and_gradient(robust_dpo, b, flip_rate=e) for b in (true, flipped))
        for a, b, clean in zip(seen, wrong, value_and_gradient(dpo, true), strict=True):
            torch.testing.assert_close((1 - e) * a + e * b, clean, rtol=1e-9, atol=1e-12)


def test_label_smoothing_of_a_half_pulls_back_to_the_reference() -> None:
    # at u = 0 half-wrong labels say nothing (gradient 0); at u = 2 they pull the margin down (dL/du > 0)
    batch = pair()
    _, at_zero_BT = value_and_gradient(dpo, batch.but(logp_BT=batch["ref_logp_BT"]), label_smoothing=0.5)
    assert inside(at_zero_BT, batch) == [[0.0, 0.0], [0.0]]
    _, grad_BT = value_and_gradient(dpo, batch, label_smoothing=0.5)
    assert grad_BT[0, 0] > 0 > grad_BT[1, 0]


def test_dpo_survives_extreme_margins() -> None:
    # -log sigmoid(-1000) = 1000, slope -1; a naive log(sigmoid) gives inf
    batch = batch_of([[-1000.0], [0.0]], pairs=[(0, 1)], ref_logp=[[0.0], [0.0]])
    loss_P, grad_BT = value_and_gradient(dpo, batch, beta=1.0)
    assert loss_P.tolist() == [1000.0]
    assert inside(grad_BT, batch) == [[-1.0], [1.0]]


def test_errors_say_what_to_give() -> None:
    with pytest.raises(UserError, match="flip_rate"):
        robust_dpo(pair(), flip_rate=0.5)
    with pytest.raises(UserError, match="ref_logp_BT"):
        dpo(pair().but(ref_logp_BT=None))
