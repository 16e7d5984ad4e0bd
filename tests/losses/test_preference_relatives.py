"""Relatives of DPO: values and gradients by hand, one point in each regime."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.systems.preference.aot import aot_loss, aot_unpaired_loss
from posttrain.systems.preference.apo_down import apo_down_loss
from posttrain.systems.preference.apo_zero import apo_zero_loss
from posttrain.systems.preference.bco import bco_loss
from posttrain.systems.preference.brain import brain_loss
from posttrain.systems.preference.cpo import cpo_loss
from posttrain.systems.preference.discopop import discopop_loss
from posttrain.systems.preference.exo import exo_loss
from posttrain.systems.preference.irpo import irpo_loss
from posttrain.systems.preference.kto import kto_loss, mean_kl
from posttrain.systems.preference.ld_dpo import ld_dpo_loss
from posttrain.systems.preference.nca import nca_loss
from posttrain.systems.preference.orpo import log_odds, orpo_loss
from posttrain.systems.preference.pro import pro_loss
from posttrain.systems.preference.r_dpo import r_dpo_loss
from posttrain.systems.preference.rrhf import rrhf_loss
from posttrain.systems.preference.simpo import simpo_loss
from posttrain.systems.preference.slic import slic_loss
from posttrain.systems.preference.sppo import sppo_loss
from posttrain.systems.preference.tpo import tpo_loss
from tests.losses.table import batch_of, inside, value_and_gradient

# One pair. Chosen, two tokens: S = -3, s = -1.5, log-ratios .5 and .5, l = 1. Rejected, one token: S = s = -3, l = -1. So u = 2.
LOGP, REF = [[-1.0, -2.0], [-3.0]], [[-1.5, -2.5], [-2.0]]


def sig(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def ls(x: float) -> float:
    """-log sigmoid(x)."""
    return math.log1p(math.exp(-x))


def bump(x: float) -> float:
    """The derivative of sigmoid."""
    return sig(x) * sig(-x)


def odds(x: float) -> float:
    return x - math.log(1 - math.exp(x))


APART = odds(-1.5) - odds(-3.0)
M = sig(2.0)  # DiscoPOP at beta u = .1 and tau = .05


@pytest.mark.derived(
    "preference_loss/simpo", "preference_loss/cpo", "preference_loss/orpo", "preference_loss/slic", "preference_loss/nca",
    "preference_loss/exo", "preference_loss/apo-zero", "preference_loss/apo-down", "preference_loss/discopop",
    "preference_loss/r-dpo", "preference_loss/ld-dpo", "preference_loss/irpo",
)  # fmt: skip
@pytest.mark.parametrize(
    ("part", "params", "loss", "chosen", "rejected"),  # gradient at each token
    [
        # 2 (-1.5 + 3) - .5 = 2.5; a mean of two tokens: each has half of beta
        (simpo_loss, {}, ls(2.5), [-sig(-2.5)] * 2, [2 * sig(-2.5)]),
        # .5 (-3 + 3) = 0: log 2 and 1.5 of imitation; -.5 / 2 from the pair, -1/2 from the mean of two tokens
        (cpo_loss, {"beta": 0.5}, math.log(2) + 1.5, [-0.75] * 2, [0.25]),
        # d log odds / ds = 1 / (1 - e^s)
        (orpo_loss, {}, 1.5 + 0.1 * ls(APART), [-0.5 - 0.05 * sig(-APART) / (1 - math.exp(-1.5))] * 2,
         [0.1 * sig(-APART) / (1 - math.exp(-3))]),
        (slic_loss, {}, 1.0 + 0.3, [-1.1] * 2, [1.0]),  # 1 + 3 - 3 = 1 is inside the hinge
        (slic_loss, {"delta": -1.0}, 0.3, [-0.1] * 2, [0.0]),  # the margin is there: only imitation
        # beta l = .5 and -.5: the chosen one is pushed both ways
        (nca_loss, {"beta": 0.5}, 1.5 * ls(0.5) + 0.5 * ls(-0.5), [0.5 * (-sig(-0.5) + 0.5 * sig(0.5))] * 2,
         [0.25 * sig(-0.5)]),
        # q = sigmoid(1), d/dx [q log q + (1 - q) log(1 - q) - ...] = q (1 - q) (x - log 9)
        (exo_loss, {"beta": 0.5, "eps": 0.1}, sig(1) * (-ls(1) - math.log(0.9)) + sig(-1) * (-ls(-1) - math.log(0.1)),
         [0.5 * bump(1) * (1 - math.log(9))] * 2, [-0.5 * bump(1) * (1 - math.log(9))]),
        (apo_zero_loss, {"beta": 0.5}, 2 * sig(-0.5), [-0.5 * bump(0.5)] * 2, [0.5 * bump(0.5)]),
        (apo_down_loss, {"beta": 0.5}, sig(0.5) + sig(-1), [0.5 * (bump(0.5) - bump(1))] * 2, [0.5 * bump(1)]),
        (discopop_loss, {}, (1 - M) * ls(0.1) + M * math.exp(-0.1),
         [0.05 * (20 * bump(2) * (math.exp(-0.1) - ls(0.1)) - (1 - M) * sig(-0.1) - M * math.exp(-0.1))] * 2,
         [-0.05 * (20 * bump(2) * (math.exp(-0.1) - ls(0.1)) - (1 - M) * sig(-0.1) - M * math.exp(-0.1))]),
        # beta u = 1, and half of 1.5: -.5 / 2 a token of imitation
        (irpo_loss, {"beta": 0.5, "alpha": 0.5}, ls(1) + 0.75, [-0.5 * sig(-1) - 0.25] * 2, [0.5 * sig(-1)]),
        # .5 * 2 + .25 (2 - 1): the longer chosen answer is nearer to won
        (r_dpo_loss, {"beta": 0.5, "alpha": 0.25}, ls(1.25), [-0.5 * sig(-1.25)] * 2, [0.5 * sig(-1.25)]),
        # the second token of the chosen answer is beyond the rejected one's length: .5 + .5 * .5 - (-1) = 1.75, times .5
        (ld_dpo_loss, {"beta": 0.5}, ls(0.875), [-0.5 * sig(-0.875), -0.25 * sig(-0.875)], [0.5 * sig(-0.875)]),
    ],
)  # fmt: skip
def test_table(part: Any, params: dict[str, float], loss: float, chosen: list[float], rejected: list[float]) -> None:
    batch = batch_of(LOGP, pairs=[(0, 1)], ref_logp=REF)
    loss_P, grad_BT = value_and_gradient(part, batch, **params)
    torch.testing.assert_close(loss_P.tolist(), [loss], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(inside(grad_BT, batch), [chosen, rejected], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("x", [-1e-3, -0.1, -0.69, -0.7, -5.0, -80.0])
def test_log_odds_are_stable(x: float) -> None:
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    value = log_odds(leaf)
    value.backward()
    assert value.item() == pytest.approx(x - math.log(-math.expm1(x)), rel=1e-9)
    assert leaf.grad is not None and leaf.grad.item() == pytest.approx(-1 / math.expm1(x), rel=1e-6)


def test_an_answer_that_is_certain_has_finite_odds() -> None:
    leaf = torch.zeros((), requires_grad=True)
    log_odds(leaf).backward()
    assert leaf.grad is not None and torch.isfinite(leaf.grad)


def test_labels_that_are_never_wrong_are_refused_by_exo() -> None:
    with pytest.raises(UserError, match=r"0 < eps < 0\.5"):
        exo_loss(batch_of(LOGP, pairs=[(0, 1)], ref_logp=REF), eps=0.0)


# ---- statistics of the minibatch

# Two pairs of one token each. Margins of the policy 2 and .5, of the reference 1 and 3: rank by rank .5 - 1 and 2 - 3.
# Log-ratios: chosen 0 and -1, rejected -1 and 1.5: rank by rank -1 - (-1) and 0 - 1.5.
TWO = [[-1.0], [-3.0], [-2.0], [-2.5]]
TWO_REF = [[-1.0], [-2.0], [-1.0], [-4.0]]


@pytest.mark.derived("preference_loss/aot")
def test_aot_compares_margins_of_like_rank() -> None:
    batch = batch_of(TWO, pairs=[(0, 1), (2, 3)], ref_logp=TWO_REF)
    loss_P, grad_BT = value_and_gradient(aot_loss, aot_loss.card.whole(batch, {}), beta=1.0)
    torch.testing.assert_close(loss_P.tolist(), [ls(-1), ls(-0.5)])
    torch.testing.assert_close(grad_BT.flatten().tolist(), [-sig(1), sig(1), -sig(0.5), sig(0.5)])


def test_aot_sorts_the_references_margins_too() -> None:
    # own margins 3, 1, 2; the reference's .5, 2, -1, which sorted are -1, .5, 2: beside 3 stands 2, beside 1 stands -1, beside 2 stands .5
    own, ref = [[-2.0], [-5.0], [-4.0], [-5.0], [-3.0], [-5.0]], [[-4.5], [-5.0], [-3.0], [-5.0], [-6.0], [-5.0]]
    batch = batch_of(own, pairs=[(0, 1), (2, 3), (4, 5)], ref_logp=ref)
    loss_P, _ = value_and_gradient(aot_loss, aot_loss.card.whole(batch, {}), beta=1.0)
    torch.testing.assert_close(loss_P.tolist(), [ls(1.0), ls(2.0), ls(1.5)])


@pytest.mark.derived("preference_loss/aot-unpaired")
def test_aot_unpaired_compares_rewards_of_like_rank() -> None:
    batch = aot_unpaired_loss.card.whole(batch_of(TWO, pairs=[(0, 1), (2, 3)], ref_logp=TWO_REF), {})
    assert (batch["chosen_P"].tolist(), batch["rejected_P"].tolist()) == ([2, 0], [1, 3])
    loss_P, grad_BT = value_and_gradient(aot_unpaired_loss, batch, beta=1.0)
    torch.testing.assert_close(loss_P.tolist(), [ls(0), ls(-1.5)])
    torch.testing.assert_close(grad_BT.flatten().tolist(), [-sig(1.5), 0.5, -0.5, sig(1.5)])


def labelled(logp: list[float], ref: list[float], labels: list[float]) -> Batch:
    batch = batch_of([[x] for x in logp], ref_logp=[[x] for x in ref])
    return batch.but(chosen_P=None, rejected_P=None, label_B=torch.tensor(labels, dtype=torch.float64))


NONE = float("nan")


@pytest.mark.derived("preference_loss/kto")
def test_kto_measures_z_on_answers_to_other_questions() -> None:
    # l = 1 (good), -1 (bad), .5 and -.3 (others): z = .1. Good: 1 - sigmoid(.9); bad: 1 - sigmoid(.1 + 1), which rises with l
    batch = mean_kl(labelled([-1, -2, -1, -1], [-2, -1, -1.5, -0.7], [1, 0, NONE, NONE]), {})
    assert batch["label_B"].tolist() == [1, 0], "they are not learned from"
    loss_B, grad_BT = value_and_gradient(kto_loss, batch, beta=1.0)
    torch.testing.assert_close(loss_B.tolist(), [sig(-0.9), sig(-1.1)])
    torch.testing.assert_close(grad_BT.flatten().tolist(), [-bump(0.9), bump(1.1)])
    weighted, _ = value_and_gradient(kto_loss, batch, beta=1.0, desirable=2.0, undesirable=3.0)
    torch.testing.assert_close(weighted.tolist(), [2 * sig(-0.9), 3 * sig(-1.1)])


def test_z_is_never_below_0_and_needs_somebody_to_be_measured_on() -> None:
    assert mean_kl(labelled([-1, -2, -1, -1], [-2, -1, -0.5, -0.7], [1, 0, NONE, NONE]), {})["z_B"].tolist() == [0, 0]
    with pytest.raises(UserError, match="mismatched"):
        mean_kl(labelled([-1, -2], [-2, -1], [1, 0]), {})


@pytest.mark.derived("preference_loss/bco")
def test_bco_shifts_by_the_mean_reward_of_all_updates() -> None:
    memory: dict[str, float] = {}
    part = bco_loss.but(beta=0.5)
    first = part.card.whole(labelled([-1, -2], [-2, -1], [1, 0]), memory, **part.params)  # beta l = .5, -.5: mean 0
    loss_B, grad_BT = value_and_gradient(part, first)
    torch.testing.assert_close(loss_B.tolist(), [ls(0.5), ls(0.5)])
    torch.testing.assert_close(grad_BT.flatten().tolist(), [-0.5 * sig(-0.5), 0.5 * sig(-0.5)])
    # beta l = 1.5 and .5: with those before the classes' means are 1 and 0: .5
    second = part.card.whole(labelled([-1, -1], [-4, -2], [1, 0]), memory, **part.params)
    loss_B, grad_BT = value_and_gradient(part, second)
    torch.testing.assert_close(loss_B.tolist(), [ls(1.0), math.log(2)])
    torch.testing.assert_close(grad_BT.flatten().tolist(), [-0.5 * sig(-1.0), 0.25])


@pytest.mark.derived("preference_loss/bco")
def test_bco_weighs_both_classes_alike_however_many_they_are() -> None:
    # beta l = 1 and 3 (good), -1 (bad), 9 (nobody said): (2 - 1) / 2 = .5, where the mean over all three is 1
    part, memory = bco_loss.but(beta=1.0), dict[str, float]()
    batch = part.card.whole(labelled([-1, -1, -2, -1], [-2, -4, -1, -10], [1, 1, 0, NONE]), memory, **part.params)
    loss_B, grad_BT = value_and_gradient(part, batch)
    torch.testing.assert_close(loss_B.tolist()[:3], [ls(0.5), ls(2.5), ls(1.5)])
    torch.testing.assert_close(grad_BT.flatten().tolist()[:3], [-sig(-0.5), -sig(-2.5), sig(-1.5)])
    # only good answers so far: delta is their mean, 2
    (delta, _) = part.card.whole(labelled([-1, -1], [-2, -4], [1, 1]), {}, **part.params)["delta_B"].tolist()
    assert delta == 2.0


# ---- ranked lists

# Three answers, best first: s = -1.5 (S = -3, two tokens), -1, -3; scores 3, 2, 1
LIST = [[-1.0, -2.0], [-1.0], [-3.0]]


def listed(scores: tuple[float, ...] = (3.0, 2.0, 1.0), garbage: float = 0.0) -> Batch:
    batch = batch_of(LIST, reward=[[garbage, scores[0]], [scores[1]], [scores[2]]])
    reward_BT = torch.where(batch.mask_BT > 0, batch["reward_BT"], 0.0)
    return batch.but(chosen_P=None, rejected_P=None, ranked_LK=torch.tensor([[0, 1, 2, -1]]), reward_BT=reward_BT)


@pytest.mark.derived("preference_loss/rrhf")
def test_rrhf_is_a_hinge_where_a_worse_answer_is_likelier() -> None:
    # only the second is ahead of a better one: -1 - (-1.5) = .5; and 1.5 of imitation
    batch = listed()
    loss_L, grad_BT = value_and_gradient(rrhf_loss, batch)
    assert loss_L.tolist() == [2.0] and inside(grad_BT, batch) == [[-1.0, -1.0], [1.0], [0.0]]
    loss_L, grad_BT = value_and_gradient(rrhf_loss, listed((2.0, 2.0, 1.0)))  # equals are not compared
    assert loss_L.tolist() == [1.5] and inside(grad_BT, batch) == [[-0.5, -0.5], [0.0], [0.0]]


@pytest.mark.derived("preference_loss/pro")
def test_pro_contrasts_each_place_with_all_below() -> None:
    # place 0: g = 2: exponents -1.5 * 2 = -3, -1 * 1 = -1, -3 * 2 = -6. place 1: g = 1: -1 * 1 and -3 * 1. Imitation .05 * 2^2 * 3
    batch = listed()
    loss_L, grad_BT = value_and_gradient(pro_loss, batch)
    z0, z1 = sum(map(math.exp, (-3, -1, -6))), sum(map(math.exp, (-1, -3)))
    torch.testing.assert_close(loss_L.item(), math.log(z0) + 3 + math.log(z1) + 1 + 0.6)
    # d/ds_0 = 2 (p_0 - 1), shared by two tokens, and -.2 a token; d/ds_1 = p_1 + (q_1 - 1); d/ds_2 = 2 p_2 + q_2
    p = [math.exp(x) / z0 for x in (-3, -1, -6)]
    q = [math.exp(x) / z1 for x in (-1, -3)]
    first = p[0] - 1 - 0.2
    torch.testing.assert_close(inside(grad_BT, batch), [[first, first], [p[1] + q[0] - 1], [2 * p[2] + q[1]]])


@pytest.mark.derived("preference_loss/tpo")
def test_tpo_imitates_the_first_and_compares_the_second_with_the_last() -> None:
    # .5 (-1 + 3) = 1; .05 * 1.5 of imitation. With means and a margin of .5: the same sums, these answers have one token
    batch = listed()
    loss_L, grad_BT = value_and_gradient(tpo_loss, batch, beta=0.5)
    torch.testing.assert_close(loss_L.item(), ls(1) + 0.075)
    torch.testing.assert_close(inside(grad_BT, batch), [[-0.025, -0.025], [-0.5 * sig(-1)], [0.5 * sig(-1)]])
    loss_L, _ = value_and_gradient(tpo_loss, batch, beta=0.5, gamma=0.5, mean=True, alpha=0.0)
    torch.testing.assert_close(loss_L.item(), ls(0.5))


@pytest.mark.derived("preference_loss/sppo")
def test_sppo_is_a_regression_on_how_much_an_answer_wins() -> None:
    # log-ratios .5 + .5 = 1, 0 and -1; wins .75, .5, .25; beta .5: targets .5, 0, -.5: (.5)^2 + 0 + (-.5)^2
    batch = listed((0.75, 0.5, 0.25)).but(ref_logp_BT=torch.tensor([[-1.5, -2.5], [-1.0, 9.0], [-2.0, 9.0]]).double())
    loss_L, grad_BT = value_and_gradient(sppo_loss, batch, beta=0.5)
    assert loss_L.tolist() == [0.5] and inside(grad_BT, batch) == [[1.0, 1.0], [0.0], [-1.0]]
    # hard: 1 for the first and 0 for the others: targets 1, -1, -1: 0 + 1 + 0
    loss_L, grad_BT = value_and_gradient(sppo_loss, batch, beta=0.5, hard=True)
    assert loss_L.tolist() == [1.0] and inside(grad_BT, batch) == [[0.0, 0.0], [2.0], [0.0]]


@pytest.mark.derived("preference_loss/brain")
def test_brain_weighs_answers_by_posterior_minus_policy() -> None:
    # S = -3, -1, -3; sampler -2, -1, -3 (sums of -1 -1, -1, -3); reference -3, -2, -3; rewards 1, 0, 1 with gamma .5
    # log a ~ ref + r / gamma - old = -3 + 2 + 2, -2 + 0 + 1, -3 + 2 + 3 = 1, -1, 2;  log b ~ S - old = -1, 0, 0
    batch = listed((1.0, 0.0, 1.0)).but(
        old_logp_BT=torch.tensor([[-1.0, -1.0], [-1.0, 9.0], [-3.0, 9.0]]).double(),
        ref_logp_BT=torch.tensor([[-2.0, -1.0], [-2.0, 9.0], [-3.0, 9.0]]).double(),
    )
    za, zb = sum(map(math.exp, (1, -1, 2))), sum(map(math.exp, (-1, 0, 0)))
    a = [math.exp(x) / za for x in (1, -1, 2)]
    b = [math.exp(x) / zb for x in (-1, 0, 0)]
    loss_L, grad_BT = value_and_gradient(brain_loss, batch, gamma=0.5)
    torch.testing.assert_close(loss_L.item(), sum(x * math.log(x / y) for x, y in zip(a, b, strict=True)))
    pull = [y - x for x, y in zip(a, b, strict=True)]
    torch.testing.assert_close(inside(grad_BT, batch), [[pull[0]] * 2, [pull[1]], [pull[2]]])
    loss_L, grad_BT = value_and_gradient(brain_loss, batch, gamma=0.5, baseline=False)
    torch.testing.assert_close(loss_L.item(), 3 * a[0] + a[1] + 3 * a[2])
    torch.testing.assert_close(inside(grad_BT, batch), [[-a[0]] * 2, [-a[1]], [-a[2]]])
