"""SFT, the value loss and the reward-model loss: value-and-gradient tables derived by hand."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.losses.reward_model.bradley_terry import bradley_terry
from posttrain.losses.supervised.sft import sft
from posttrain.losses.value.value_loss import value_loss
from posttrain.systems.reward_model.process_reward_model import step_value
from tests.losses.table import batch_of, inside, slopes, value_and_gradient


@pytest.mark.derived("supervised_loss/sft")
def test_sft() -> None:
    # the negative log-likelihood and -1 at every token of the answer, nothing else
    batch = batch_of([[-1.5, -0.25], [-3.0]])
    loss_BT, grad_BT = value_and_gradient(sft, batch)
    assert inside(loss_BT, batch) == [[1.5, 0.25], [3.0]]
    assert inside(grad_BT, batch) == [[-1.0, -1.0], [-1.0]]


# (v, R, old v, loss, dloss/dv) at clip .2: near = old + clip(v - old, -.2, .2)
VALUES = [
    (1.6, 3.0, 1.5, 0.98, -1.4),  # inside: (1.6 - 3)^2 / 2, gradient v - R
    (1.0, 3.0, 1.5, 2.0, -2.0),  # near 1.3, error 2.89 < 4: the larger is unclipped, it may come back
    (2.5, 3.0, 1.5, 0.845, 0.0),  # near 1.7, error 1.69 > .25: moved far enough, no gradient
    (5.0, 3.0, 1.5, 2.0, 2.0),  # near 1.7, error 1.69 < 4: overshot, comes back
    (1.0, -1.0, 1.5, 2.645, 0.0),  # near 1.3, error 5.29 > 4: moved far enough downwards
]


def value_batch():
    one = [[0.0]] * len(VALUES)
    v, returns, old = ([[row[i]] for row in VALUES] for i in range(3))
    return batch_of(one, value=v, **{"return": returns}, old_value=old)


@pytest.mark.derived("term/value-loss")
def test_value_loss_table() -> None:
    loss_BT, grad_BT = value_and_gradient(value_loss, value_batch(), by="value_BT")
    torch.testing.assert_close(loss_BT[:, 0].tolist(), [row[3] for row in VALUES], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(grad_BT[:, 0].tolist(), [row[4] for row in VALUES], rtol=1e-9, atol=1e-12)


def test_value_loss_unclipped_and_coefficient() -> None:
    # (v - R)^2 / 2 and v - R; everything times coef
    loss_BT, grad_BT = value_and_gradient(value_loss, value_batch(), by="value_BT", clip=None, coef=0.1)
    torch.testing.assert_close(loss_BT[:, 0].tolist(), [0.05 * (v - r) ** 2 for v, r, *_ in VALUES])
    torch.testing.assert_close(grad_BT[:, 0].tolist(), [0.1 * (v - r) for v, r, *_ in VALUES])
    half_BT = value_loss(value_batch(), coef=0.5)
    torch.testing.assert_close(half_BT * 2, value_loss(value_batch()))


def test_value_loss_without_clip_does_not_need_old_values() -> None:
    value_loss(value_batch().but(old_value_BT=None), clip=None)
    with pytest.raises(UserError, match="old_value_BT"):
        value_loss(value_batch().but(old_value_BT=None))


def scored(scores, pairs):
    return batch_of([[0.0]] * len(scores), pairs=pairs).but(score_B=torch.tensor(scores, dtype=torch.float64))


S = 1 / (1 + math.e)  # sigmoid(-1)


@pytest.mark.derived("reward_model_loss/bradley-terry")
@pytest.mark.parametrize(
    ("params", "loss", "chosen", "rejected"),
    [
        ({}, math.log1p(math.exp(-1)), -S, S),  # difference 1: -log sigmoid(1), -+ sigmoid(-1)
        ({"margin": 1.0}, math.log(2), -0.5, 0.5),  # difference 1 - 1 = 0
        # .01 (2 + 1)^2 = .09 more, and 2 * .01 * 3 = .06 more at both scores
        ({"centering": 0.01}, math.log1p(math.exp(-1)) + 0.09, -S + 0.06, S + 0.06),
    ],
)
def test_bradley_terry_table(params, loss, chosen, rejected) -> None:
    batch = scored([2.0, 1.0], [(0, 1)])
    loss_P, grad_B = value_and_gradient(bradley_terry, batch, by="score_B", **params)
    torch.testing.assert_close(loss_P.tolist(), [loss], rtol=1e-12, atol=0)
    torch.testing.assert_close(grad_B.tolist(), [chosen, rejected], rtol=1e-12, atol=0)


def test_bradley_terry_against_plain_floats() -> None:
    # row 1 is in two pairs: its gradients add
    scores, pairs = [0.3, -1.2, 2.0, 0.9], [(2, 1), (1, 0), (3, 2)]

    def losses(s):
        return [math.log(1 + math.exp(-(s[w] - s[r] - 0.5))) + 0.1 * (s[w] + s[r]) ** 2 for w, r in pairs]

    loss_P, grad_B = value_and_gradient(bradley_terry, scored(scores, pairs), by="score_B", margin=0.5, centering=0.1)
    torch.testing.assert_close(loss_P.tolist(), losses(scores), rtol=1e-9, atol=1e-12)
    expected = slopes(lambda rows: sum(losses(rows[0])), [scores])[0]
    torch.testing.assert_close(grad_B.tolist(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.derived("supervised_loss/step-value")
def test_step_value_table() -> None:
    # s = 1, y = 1: -log sigma(1) = log(1 + 1/e), slope sigma(1) - 1 = -S; s = 1, y = 0: 1 more, slope sigma(1);
    # s = 0, y = 0.25: log 2 whatever y is, slope 1/2 - 1/4. Two tokens carry the loss twice, and so its slope.
    batch = batch_of([[0.0], [0.0], [0.0, 0.0]], reward=[[1.0], [0.0], [0.0, 0.25]])
    batch = batch.but(score_B=torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))
    loss_BT, grad_B = value_and_gradient(step_value, batch, by="score_B")
    base = math.log1p(math.exp(-1))
    expected = [[base], [base + 1], [math.log(2)] * 2]
    for row, want in zip(inside(loss_BT, batch), expected, strict=True):
        torch.testing.assert_close(row, want, rtol=1e-12, atol=0)
    torch.testing.assert_close(grad_B.tolist(), [-S, 1 - S, 0.5], rtol=1e-12, atol=0)
