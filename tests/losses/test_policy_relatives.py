"""Policy losses of PPO's relatives: tables by hand, a second derivation in plain floats, and what equals what."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.laws import example
from posttrain.core.registry import Part
from posttrain.losses.aggregate import Totals, sequence_mean, sequence_sum
from posttrain.losses.objective import objective
from posttrain.losses.policy.decoupled_ppo import decoupled_ppo
from posttrain.losses.policy.ppo import ppo
from posttrain.losses.regularisers.kl import kl
from posttrain.systems.policy_gradient.clip_cov import mark_high_covariance as marks
from posttrain.systems.policy_gradient.clip_cov import penalised_marks as kl_cov
from posttrain.systems.policy_gradient.dppo import divergence_mask as dppo
from posttrain.systems.policy_gradient.gmpo import geometric_mean as gmpo
from posttrain.systems.policy_gradient.gspo import sequence_clip as gspo
from posttrain.systems.policy_gradient.icepop import two_sided_mask as icepop
from posttrain.systems.policy_gradient.kimi_k1_5 import squared_log_ratio
from posttrain.systems.policy_gradient.mis import masked_answers as mis
from posttrain.systems.policy_gradient.sapo import soft_gate as sapo
from posttrain.systems.policy_gradient.tis import truncated_weight as tis
from posttrain.systems.policy_gradient.vapo import imitate_right
from tests.losses.table import at_ratio, batch_of, inside, slopes, value_and_gradient
from tests.losses.test_policy import LOGP, OLD, ROW_ADV, TOKEN_ADV, clip, ppo_row, random_batch
from tests.tabular import train

# ---- SAPO: value -A (4/tau) sigmoid(tau (r - 1)), gradient -A r sech^2(tau (r - 1) / 2); by hand at r = 1 and r = 2
# r = 1: sigmoid(0) = 1/2, so the value is -2 A / tau and the gradient -A
# r = 2, A = 2, tau = 1: sigmoid(1) = .731059, sech^2(.5) = .786448: value -5.848469, gradient -2 * 2 * .786448
# r = 2, A = -2, tau = 1.05: sigmoid(1.05) = .740775, sech^2(.525) = 4 s (1 - s) = .768110: value 2 * 2.822000
SAPO = [
    (1.0, 2.0, -4.0, -2.0),
    (1.0, -2.0, 4.0 / 1.05, 2.0),
    (2.0, 2.0, -5.848469, -3.145791),
    (2.0, -2.0, 5.644000, 3.072440),
]
# ---- DPPO, old logp -1: q = .367879. r = 1.2: p = .441455, |p - q| = .073576; r = 1.5: p - q = .183940
DPPO = [
    (1.2, 2.0, -2.4, -2.4),  # PPO is about to clip; the distribution has hardly moved
    (1.5, 2.0, 0.0, 0.0),  # moved by .18 > .15 in the direction of the credit: left alone
    (1.5, -2.0, 3.0, 3.0),  # moved as far, but against the credit: it may come back
    (0.5, -2.0, 0.0, 0.0),  # .18 down, blamed
    (0.5, 2.0, -1.0, -1.0),
    (0.7, -2.0, 1.4, 1.4),  # .110 down: inside
]


@pytest.mark.derived("policy_loss/sapo", "policy_loss/dppo")
@pytest.mark.parametrize(("part", "table"), [(sapo, SAPO), (dppo, DPPO)])
def test_table(part, table) -> None:
    loss_BT, grad_BT = value_and_gradient(part, at_ratio([(r, a) for r, a, _, _ in table]))
    torch.testing.assert_close(loss_BT[:, 0].tolist(), [row[2] for row in table], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grad_BT[:, 0].tolist(), [row[3] for row in table], rtol=1e-5, atol=1e-6)


def sapo_token(p: float, o: float, a: float) -> float:
    tau = 1.0 if a > 0 else 1.05
    return -a * 4 / tau / (1 + math.exp(-tau * (math.exp(p - o) - 1)))


def dppo_token(p: float, o: float, a: float) -> float:
    r = math.exp(p - o)
    gone = abs(math.exp(p) - math.exp(o)) > 0.15 and (r - 1) * a > 0
    return 0.0 if gone else -r * a


@pytest.mark.parametrize(("part", "token"), [(sapo, sapo_token), (dppo, dppo_token)])
def test_against_plain_floats(part, token) -> None:
    def losses(rows):
        return [[token(*x) for x in zip(*row, strict=True)] for row in zip(rows, OLD, TOKEN_ADV, strict=True)]

    batch = batch_of(LOGP, old_logp=OLD, adv=TOKEN_ADV)
    loss_BT, grad_BT = value_and_gradient(part, batch)
    torch.testing.assert_close(inside(loss_BT, batch), losses(LOGP), rtol=1e-9, atol=1e-12)
    expected = slopes(lambda rows: sum(map(sum, losses(rows))), LOGP)
    torch.testing.assert_close(inside(grad_BT, batch), expected, rtol=1e-6, atol=1e-7)


def test_dppo_lets_rare_tokens_grow_and_holds_likely_ones() -> None:
    # a token of probability 1e-4 may become five times as likely (PPO clips at 1.2); one of .9 may not fall to .7,
    # a ratio of .78 (PPO: .8 is the limit too), nor to .74, a ratio of .82 that PPO does not clip
    rare, likely = at_ratio([(5.0, 1.0)], old=math.log(1e-4)), at_ratio([(0.74 / 0.9, -1.0)], old=math.log(0.9))
    assert value_and_gradient(dppo, rare)[1].item() == pytest.approx(-5.0)
    assert value_and_gradient(ppo, rare)[1].item() == 0.0
    assert value_and_gradient(dppo, likely)[1].item() == 0.0
    assert value_and_gradient(ppo, likely)[1].item() == pytest.approx(0.74 / 0.9)


@pytest.mark.derived("policy_loss/dppo")
def test_dppo_kl() -> None:
    # q = .5, p = .6: .5 log(.5/.6) + .5 log(.5/.4) = .5 (-.182322 + .223144) = .020411
    batch = at_ratio([(1.2, 1.0)], old=math.log(0.5))
    assert value_and_gradient(dppo, batch, kind="kl", limit=0.0205)[1].item() == pytest.approx(-1.2)
    assert value_and_gradient(dppo, batch, kind="kl", limit=0.0203)[1].item() == 0.0
    with pytest.raises(UserError, match="divergence"):
        dppo(batch, kind="js")


@pytest.mark.derived("policy_loss/gmpo")
def test_gmpo_table() -> None:
    # limits .4 in logs. Row 0, A = 2: logs .9 -> .4 (clipped) and -.2: mean .1, s = e^.1; gradient 0 and -2 s
    # Row 1, A = -1: logs -.6 -> -.4 (clipped), .5 (against the blame: not clipped), .2: mean .1; gradient 0, s, s
    # Row 2, A = -1: log .9: s = e^.9, not clipped above where blamed
    logs, adv = [[0.9, -0.2], [-0.6, 0.5, 0.2], [0.9]], [[2.0] * 2, [-1.0] * 3, [-1.0]]
    batch = batch_of([[-1 + x for x in row] for row in logs], old_logp=[[-1.0] * len(r) for r in logs], adv=adv)
    s, t = math.exp(0.1), math.exp(0.9)
    loss_BT, grad_BT = value_and_gradient(gmpo, batch)
    torch.testing.assert_close(inside(loss_BT, batch), [[-2 * s] * 2, [s] * 3, [t]])
    torch.testing.assert_close(inside(grad_BT, batch), [[0.0, -2 * s], [0.0, s, s], [t]])


def test_gmpo_under_sequence_mean_is_the_papers_objective() -> None:
    # J = 1/G sum_i A_i (prod_t clipped ratio)^(1/|y|), in plain floats
    def loss(rows) -> float:
        out = 0.0
        for p, o, a in zip(rows, OLD, ROW_ADV, strict=True):
            d = [x - y for x, y in zip(p, o, strict=True)]
            held = [min(x, 0.4) if a[0] > 0 else max(x, -0.4) for x in d]
            out -= a[0] * math.exp(sum(held) / len(held)) / len(rows)
        return out

    batch = batch_of(LOGP, old_logp=OLD, adv=ROW_ADV)
    leaf = batch.logp_BT.clone().requires_grad_()
    live = batch.but(logp_BT=leaf)
    ours = sequence_mean(gmpo(live), live, Totals.of(live))
    assert ours.item() == pytest.approx(loss(LOGP), rel=1e-9)
    torch.testing.assert_close(
        inside(torch.autograd.grad(ours, leaf)[0], batch), slopes(loss, LOGP), rtol=1e-6, atol=1e-7
    )


def test_luspo_is_gspo_times_the_length() -> None:
    # under sequence_sum each answer gives |y| min(s A, clip(s) A)
    def loss(rows) -> float:
        out = 0.0
        for p, o, a in zip(rows, OLD, ROW_ADV, strict=True):
            s = math.exp((sum(p) - sum(o)) / len(p))
            out -= len(p) * min(s * a[0], clip(s, 0.8, 1.3) * a[0]) / len(rows)
        return out

    batch = batch_of(LOGP, old_logp=OLD, adv=ROW_ADV)
    leaf = batch.logp_BT.clone().requires_grad_()
    live = batch.but(logp_BT=leaf)
    ours = sequence_sum(gspo(live, low=0.2, high=0.3), live, Totals.of(live))
    assert ours.item() == pytest.approx(loss(LOGP), rel=1e-9)
    torch.testing.assert_close(
        inside(torch.autograd.grad(ours, leaf)[0], batch), slopes(loss, LOGP), rtol=1e-6, atol=1e-7
    )


# ---- corrections: w = prox / old, r = logp / prox

PROX = [[-0.5, -1.6, -1.05, -1.7], [-1.1], [-0.3, -3.0], [-1.0, -0.45, -1.3], [-1.3, -0.6]]


def weighted_row(weigh, logp, prox, old, adv):
    w = weigh([math.exp(q - o) for q, o in zip(prox, old, strict=True)])
    return [x * y for x, y in zip(w, ppo_row(logp, None, prox, adv), strict=True)]


def whole(ws: list[float]) -> list[float]:
    return [math.prod(ws)] * len(ws)


WEIGHTS = [
    (decoupled_ppo, {}, lambda ws: ws),
    (tis, {}, lambda ws: [min(w, 2.0) for w in ws]),
    (tis, {"level": "sequence", "cap": 1.2}, lambda ws: [min(w, 1.2) for w in whole(ws)]),
    (mis, {"level": "token"}, lambda ws: [w if w <= 2.0 else 0.0 for w in ws]),
    (mis, {}, lambda ws: [w if w <= 2.0 else 0.0 for w in whole(ws)]),
    (icepop, {}, lambda ws: [w if 0.5 <= w <= 5.0 else 0.0 for w in ws]),
    (icepop, {"floor": 0.9, "cap": 1.5}, lambda ws: [w if 0.9 <= w <= 1.5 else 0.0 for w in ws]),
]


@pytest.mark.parametrize(("part", "params", "weigh"), WEIGHTS)
def test_corrections_against_plain_floats(part, params, weigh) -> None:
    def losses(rows):
        return [weighted_row(weigh, *row) for row in zip(rows, PROX, OLD, TOKEN_ADV, strict=True)]

    batch = batch_of(LOGP, old_logp=OLD, adv=TOKEN_ADV, ref_logp=PROX)
    loss_BT, grad_BT = value_and_gradient(part, batch, **params)
    torch.testing.assert_close(inside(loss_BT, batch), losses(LOGP), rtol=1e-9, atol=1e-12)
    expected = slopes(lambda rows: sum(map(sum, losses(rows))), LOGP)
    torch.testing.assert_close(inside(grad_BT, batch), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.derived("policy_loss/decoupled-ppo", "policy_loss/tis", "policy_loss/mis", "policy_loss/icepop")
def test_corrections_table() -> None:
    # on the proximal policy (r = 1), A = 1: the gradient is -w, for w = .25, 1, 1.5, 4, 8
    ws = [0.25, 1.0, 1.5, 4.0, 8.0]
    now = [[-2.0]] * 5
    batch = batch_of(now, old_logp=[[-2.0 - math.log(w)] for w in ws], ref_logp=now, adv=[[1.0]] * 5)
    expected = [
        (decoupled_ppo, ws),
        (tis, [0.25, 1.0, 1.5, 2.0, 2.0]),
        (mis, [0.25, 1.0, 1.5, 0.0, 0.0]),
        (icepop, [0.0, 1.0, 1.5, 4.0, 0.0]),
    ]
    for part, weights in expected:
        _, grad_BT = value_and_gradient(part, batch)
        assert grad_BT[:, 0].tolist() == pytest.approx([-w for w in weights]), part
    with pytest.raises(UserError, match="level"):
        tis(batch, level="batch")


@pytest.mark.parametrize("part", [decoupled_ppo, tis, mis, icepop])
def test_where_sampler_and_trainer_agree_a_correction_is_ppo(part: Part) -> None:
    batch = random_batch()
    same = batch.but(ref_logp_BT=batch["old_logp_BT"])
    torch.testing.assert_close(value_and_gradient(part, same), value_and_gradient(ppo, batch))


@pytest.mark.learns("policy_loss/decoupled-ppo", "policy_loss/tis", "policy_loss/mis", "policy_loss/icepop")
@pytest.mark.parametrize("part", [decoupled_ppo, tis, mis, icepop])
def test_corrections_learn(part: Part) -> None:
    # the proximal policy is the sampler shifted by a little noise, as between two engines
    from posttrain.advantages.grpo import grpo
    from posttrain.losses.aggregate import token_mean

    draw = torch.Generator().manual_seed(0)

    def prepare(batch):
        noise_BT = 0.05 * torch.randn(batch.mask_BT.shape, generator=draw)
        return batch.but(
            adv_BT=grpo(batch), ref_logp_BT=batch["old_logp_BT"], old_logp_BT=batch["old_logp_BT"] + noise_BT
        )

    policy = train(prepare, lambda b: objective(b, Totals.of(b), part, token_mean)[0], steps=25, lr=4.0, epochs=4)
    assert policy.expected_reward() > 0.6


# ---- KL-Cov


@pytest.mark.derived("policy_loss/kl-cov")
def test_kl_cov_table() -> None:
    # A = 2. marked, r = 1.5: -3 + log 1.5, gradient -3 + 1; marked, r = .5: -1 + log 2, gradient -1 - 1; not marked: -r A
    batch = at_ratio([(1.5, 2.0), (0.5, 2.0), (1.5, 2.0), (1.0, 2.0)])
    batch = batch.but(mark_BT=torch.tensor([[1.0], [1.0], [0.0], [1.0]], dtype=torch.float64))
    loss_BT, grad_BT = value_and_gradient(kl_cov, batch)
    values = [-3 + math.log(1.5), -1 + math.log(2), -3.0, -2.0]
    torch.testing.assert_close(loss_BT[:, 0].tolist(), values)
    torch.testing.assert_close(grad_BT[:, 0].tolist(), [-2.0, -2.0, -3.0, -2.0])
    no_marks = value_and_gradient(kl_cov, batch.but(mark_BT=None))
    torch.testing.assert_close(no_marks, value_and_gradient(ppo, batch, low=1e9))


def test_marks_travel_with_their_rows() -> None:
    batch = example()
    adv_BT, _, mark_BT = marks(batch, ratio=0.1)
    assert 0 < float(mark_BT.sum()) <= 4 and float((mark_BT * (batch.mask_BT == 0)).sum()) == 0.0
    batch = batch.but(adv_BT=adv_BT, mark_BT=mark_BT)
    index = torch.tensor([4, 1])
    torch.testing.assert_close(batch.rows(index)["mark_BT"], mark_BT[index])


# ---- terms


@pytest.mark.derived("term/squared-log-ratio")
def test_squared_log_ratio() -> None:
    # tau .5. Row 0: log-ratios .3 and .5: S = .8: .25 * .64 = .16, half to each token; gradient tau S = .4 at both
    # Row 1: S = -.6: .25 * .36 = .09, gradient -.3. Token by token (k2) row 0 would give .25 (.09 + .25) = .085
    batch = batch_of([[-0.7, -0.5], [-1.6]], ref_logp=[[-1.0, -1.0], [-1.0]])
    loss_BT, grad_BT = value_and_gradient(squared_log_ratio, batch, tau=0.5)
    torch.testing.assert_close(inside(loss_BT, batch), [[0.08, 0.08], [0.09]])
    torch.testing.assert_close(inside(grad_BT, batch), [[0.4, 0.4], [-0.3]])


def test_squared_log_ratio_against_plain_floats_and_k2() -> None:
    def loss(rows) -> float:
        return sum(0.05 * (sum(p) - sum(o)) ** 2 for p, o in zip(rows, OLD, strict=True))

    batch = batch_of(LOGP, ref_logp=OLD)
    value_BT, grad_BT = value_and_gradient(squared_log_ratio, batch)
    assert sum(map(sum, inside(value_BT, batch))) == pytest.approx(loss(LOGP))
    torch.testing.assert_close(inside(grad_BT, batch), slopes(loss, LOGP), rtol=1e-6, atol=1e-7)
    one = batch_of([[-0.3], [-2.0]], ref_logp=[[-1.0], [-1.0]])
    ours, theirs = value_and_gradient(squared_log_ratio, one, tau=0.3), value_and_gradient(kl, one, coef=0.3, kind="k2")
    torch.testing.assert_close(ours, theirs)


@pytest.mark.derived("term/imitate-right")
def test_imitate_right() -> None:
    # .1 * -logp where the answer was right: row 0, whose 2 of 4 tokens are marked by 4/2
    batch = batch_of([[-1.0, -2.0], [-1.0], [-3.0]])
    batch = batch.but(mark_BT=torch.tensor([[2.0, 2.0], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64))
    loss_BT, grad_BT = value_and_gradient(imitate_right, batch)
    torch.testing.assert_close(inside(loss_BT, batch), [[0.2, 0.4], [0.0], [0.0]])
    torch.testing.assert_close(inside(grad_BT, batch), [[-0.2, -0.2], [0.0], [0.0]])
