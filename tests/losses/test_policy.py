"""Policy losses: value-and-gradient tables derived by hand, a second derivation in plain floats, equivalences."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.losses.aggregate import Totals, sequence_mean
from posttrain.losses.policy.dapo import dapo
from posttrain.losses.policy.ppo import ppo
from posttrain.losses.policy.reinforce import reinforce
from posttrain.systems.policy_gradient.cispo import clipped_weight as cispo
from posttrain.systems.policy_gradient.dual_clip import twice_clipped as dual_clip
from posttrain.systems.policy_gradient.gspo import sequence_clip as gspo
from posttrain.systems.supervised_from_reward.raft import raft_loss as raft
from tests.losses.table import at_ratio, batch_of, inside, slopes, value_and_gradient

# (ratio, credit, loss, dloss/dlogp). Unclipped: loss = -r A and, since dr/dlogp = r, gradient = -r A. Clipped: the loss
# is a constant and the gradient 0. The minimum takes the clipped branch only where it is the more pessimistic.
PPO = [
    (1.0, 2.0, -2.0, -2.0),  # on policy
    (1.1, 2.0, -2.2, -2.2),  # inside
    (1.5, 2.0, -2.4, 0.0),  # credited and already above: -1.2 * 2
    (0.5, 2.0, -1.0, -1.0),  # credited but below: not clipped, it may come back
    (1.5, -2.0, 3.0, 3.0),  # blamed but above: not clipped
    (0.5, -2.0, 1.6, 0.0),  # blamed and already below: -0.8 * -2
    (0.9, -2.0, 1.8, 1.8),  # inside
]
DAPO = [
    (1.25, 2.0, -2.5, -2.5),  # PPO would have clipped at 1.2; here the limit is 1.28
    (1.3, 2.0, -2.56, 0.0),  # -1.28 * 2
    (0.7, -2.0, 1.6, 0.0),  # the lower limit is still 0.8
    (0.75, 2.0, -1.5, -1.5),
    (1.3, -2.0, 2.6, 2.6),
]
DUAL = [
    (2.0, -2.0, 4.0, 4.0),  # PPO's 4 is below c |A| = 6
    (5.0, -2.0, 6.0, 0.0),  # PPO's 10 is capped at 6
    (0.5, -2.0, 1.6, 0.0),
    (5.0, 2.0, -2.4, 0.0),  # credited: as PPO
    (0.5, 2.0, -1.0, -1.0),
]
# logp = -1 + log r; weight w = min(r, 5); loss = -w A logp, gradient = -w A, because w is a constant
CISPO = [
    (1.0, 2.0, 2.0, -2.0),
    (2.0, 2.0, -4.0 * (-1 + math.log(2)), -4.0),
    (10.0, 2.0, -10.0 * (-1 + math.log(10)), -10.0),  # weight 5, not 10, and the gradient is alive
    (0.1, -2.0, 0.2 * (-1 + math.log(0.1)), 0.2),  # no lower bound
    (10.0, -2.0, 10.0 * (-1 + math.log(10)), 10.0),
]


@pytest.mark.derived("policy_loss/ppo", "policy_loss/dapo", "policy_loss/dual-clip", "policy_loss/cispo")
@pytest.mark.parametrize(
    ("part", "params", "table"),
    [(ppo, {}, PPO), (dapo, {}, DAPO), (dual_clip, {}, DUAL), (cispo, {}, CISPO), (ppo, {"high": 0.28}, DAPO)],
)
def test_table(part, params, table) -> None:
    batch = at_ratio([(r, a) for r, a, _, _ in table])
    loss_BT, grad_BT = value_and_gradient(part, batch, **params)
    torch.testing.assert_close(loss_BT[:, 0].tolist(), [row[2] for row in table], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(grad_BT[:, 0].tolist(), [row[3] for row in table], rtol=1e-9, atol=1e-12)


@pytest.mark.derived("policy_loss/reinforce", "policy_loss/raft")
def test_reinforce_and_raft_table() -> None:
    # reinforce: -A logp, gradient -A, whatever the sampler thought; raft: -logp, gradient -1, whatever the credit
    batch = batch_of([[-1.5, -0.5], [-2.0]], adv=[[2.0, -1.0], [0.0]], old_logp=[[-9.0, -9.0], [-9.0]])
    loss_BT, grad_BT = value_and_gradient(reinforce, batch)
    assert inside(loss_BT, batch) == [[3.0, -0.5], [0.0]]
    assert inside(grad_BT, batch) == [[-2.0, 1.0], [0.0]]
    loss_BT, grad_BT = value_and_gradient(raft, batch)
    assert inside(loss_BT, batch) == [[1.5, 0.5], [2.0]]
    assert inside(grad_BT, batch) == [[-1.0, -1.0], [-1.0]]


@pytest.mark.derived("policy_loss/gspo")
def test_gspo_table() -> None:
    # low .2, high .3. Log ratios and, from their mean over the answer, s:
    #   (log 1.44, 0)           s = 1.2  A =  2  inside:           loss -2.4, gradient -s A = -2.4 at both tokens
    #   (log 1.5)               s = 1.5  A =  2  above:            loss -1.3 * 2 = -2.6, gradient 0
    #   (log 1.5)               s = 1.5  A = -2  above but blamed: loss 3, gradient 3
    #   (log .25, 0, log .5)    s = .5   A = -1  below:            loss .8, gradient 0, at the 2nd token too
    #   (log .25, 0, log .5)    s = .5   A =  1  below, credited:  loss -.5, gradient -.5
    ratios = [[1.44, 1.0], [1.5], [1.5], [0.25, 1.0, 0.5], [0.25, 1.0, 0.5]]
    adv = [[2.0, 2.0], [2.0], [-2.0], [-1.0] * 3, [1.0] * 3]
    old = [[-1.0] * len(r) for r in ratios]
    batch = batch_of([[-1.0 + math.log(r) for r in row] for row in ratios], old_logp=old, adv=adv)
    loss_BT, grad_BT = value_and_gradient(gspo, batch, low=0.2, high=0.3)
    expected_loss = [[-2.4, -2.4], [-2.6], [3.0], [0.8] * 3, [-0.5] * 3]
    expected_grad = [[-2.4, -2.4], [0.0], [3.0], [0.0] * 3, [-0.5] * 3]
    torch.testing.assert_close(inside(loss_BT, batch), expected_loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(inside(grad_BT, batch), expected_grad, rtol=1e-9, atol=1e-12)


@pytest.mark.derived("policy_loss/gspo")
def test_gspo_default_clip_is_the_papers() -> None:
    # limits 1 - 3e-4 and 1 + 4e-4: a credited s of 1.00035 is inside, 1.00045 not; a blamed .99975 inside, .99965 not
    batch = at_ratio([(1.00035, 1.0), (1.00045, 1.0), (0.99975, -1.0), (0.99965, -1.0)])
    _, grad_BT = value_and_gradient(gspo, batch)
    torch.testing.assert_close(grad_BT[:, 0].tolist(), [-1.00035, 0.0, 0.99975, 0.0])


# ---- a second derivation, token by token in plain floats; `at` are the logps where weights are frozen (stop-gradient)


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def ppo_row(logp, at, old, adv, low=0.2, high=0.2):
    ratios = [math.exp(p - o) for p, o in zip(logp, old, strict=True)]
    return [-min(r * a, clip(r, 1 - low, 1 + high) * a) for r, a in zip(ratios, adv, strict=True)]


def dapo_row(logp, at, old, adv):
    return ppo_row(logp, at, old, adv, 0.2, 0.28)


def dual_row(logp, at, old, adv):
    return [min(x, -3.0 * a) if a < 0 else x for x, a in zip(ppo_row(logp, at, old, adv), adv, strict=True)]


def gspo_row(logp, at, old, adv, low=0.2, high=0.3):
    # the paper's own objective, one ratio and one credit an answer: min(s A, clip(s) A), here as |y| equal tokens
    s = math.exp(sum(p - o for p, o in zip(logp, old, strict=True)) / len(logp))
    return [-min(s * a, clip(s, 1 - low, 1 + high) * a) for a in adv]


def cispo_row(logp, at, old, adv):
    rows = zip(logp, at, old, adv, strict=True)
    return [-min(math.exp(frozen - o), 5.0) * a * p for p, frozen, o, a in rows]


def reinforce_row(logp, at, old, adv):
    return [-a * p for p, a in zip(logp, adv, strict=True)]


LOGP = [[-0.3, -2.0, -1.1, -0.9], [-1.0], [-0.2, -4.0], [-2.5, -0.4, -1.4], [-1.3, -0.6]]
OLD = [[-0.9, -1.1, -1.0, -1.0], [-3.2], [-0.5, -1.2], [-0.3, -0.5, -1.2], [-1.35, -0.58]]
TOKEN_ADV = [[1.5, -0.5, 2.0, -1.0], [-1.2], [-0.7, 0.8], [0.6, -0.9, -2.0], [1.0, -1.0]]
ROW_ADV = [[1.5] * 4, [-1.2], [-0.7] * 2, [0.6] * 3, [-1.0] * 2]


@pytest.mark.parametrize(
    ("part", "row", "adv", "params"),
    [
        (ppo, ppo_row, TOKEN_ADV, {}),
        (dapo, dapo_row, TOKEN_ADV, {}),
        (dual_clip, dual_row, TOKEN_ADV, {}),
        (gspo, gspo_row, ROW_ADV, {"low": 0.2, "high": 0.3}),
        (cispo, cispo_row, TOKEN_ADV, {}),
        (reinforce, reinforce_row, TOKEN_ADV, {}),
    ],
)
def test_against_plain_floats(part, row, adv, params) -> None:
    def losses(logp):
        return [row(p, at, o, a) for p, at, o, a in zip(logp, LOGP, OLD, adv, strict=True)]

    batch = batch_of(LOGP, old_logp=OLD, adv=adv)
    loss_BT, grad_BT = value_and_gradient(part, batch, **params)
    torch.testing.assert_close(inside(loss_BT, batch), losses(LOGP), rtol=1e-9, atol=1e-12)
    expected = slopes(lambda rows: sum(map(sum, losses(rows))), LOGP)
    torch.testing.assert_close(inside(grad_BT, batch), expected, rtol=1e-6, atol=1e-7)


# ---- equivalences


def random_batch(T: int = 4):
    draw = torch.Generator().manual_seed(1)
    old, delta, adv = (torch.randn(16, T, generator=draw, dtype=torch.float64) for _ in range(3))
    logp = (old + 0.4 * delta).tolist()
    return batch_of(logp, old_logp=old.tolist(), adv=adv.tolist())


def assert_equal(one, other) -> None:
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_dapo_with_equal_limits_is_ppo() -> None:
    batch = random_batch()
    assert_equal(value_and_gradient(dapo, batch, low=0.1, high=0.1), value_and_gradient(ppo, batch, low=0.1))


def test_gspo_is_ppo_for_answers_of_one_token() -> None:
    batch = random_batch(T=1)
    assert_equal(value_and_gradient(gspo, batch, low=0.2, high=0.2), value_and_gradient(ppo, batch))


def test_dual_clip_is_ppo_where_credit_is_positive_and_when_c_is_huge() -> None:
    batch = random_batch()
    credited = batch.but(adv_BT=batch["adv_BT"].abs())
    assert_equal(value_and_gradient(dual_clip, credited), value_and_gradient(ppo, credited))
    assert_equal(value_and_gradient(dual_clip, batch, c=1e9), value_and_gradient(ppo, batch))


def test_cispo_on_policy_has_the_gradient_of_reinforce_and_unclipped_that_of_the_ratio() -> None:
    batch = random_batch()
    on = batch.but(old_logp_BT=batch.logp_BT)
    assert_equal(value_and_gradient(cispo, on)[1], value_and_gradient(reinforce, on)[1])
    unbounded_grad = value_and_gradient(ppo, batch, low=1e9)[1]
    assert_equal(value_and_gradient(cispo, batch, high=1e9)[1], unbounded_grad)


def test_gspo_under_sequence_mean_is_the_papers_objective() -> None:
    # J = 1/G sum_i min(s_i A_i, clip(s_i) A_i), differentiated directly through s
    batch = batch_of(LOGP, old_logp=OLD, adv=ROW_ADV)
    leaf = batch.logp_BT.clone().requires_grad_()
    live = batch.but(logp_BT=leaf)
    mean_B = torch.where(batch.mask_BT > 0, leaf - batch["old_logp_BT"], 0.0).sum(-1) / batch.lengths_B
    s_B, adv_B = torch.exp(mean_B), batch["adv_BT"][:, 0]
    paper = -torch.minimum(s_B * adv_B, s_B.clamp(0.8, 1.3) * adv_B).mean()
    ours = sequence_mean(gspo(live, low=0.2, high=0.3), live, Totals.of(live))
    assert_equal(ours, paper)
    assert_equal(torch.autograd.grad(ours, leaf)[0], torch.autograd.grad(paper, leaf)[0])
