"""Formulas of distillation, by hand: the divergences of GKD, those of a teacher's likeliest tokens, a teacher's word as credit."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core import laws
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.models.divergence import likeliest
from posttrain.systems.distillation.gkd import topk_divergence, whole_distribution
from posttrain.systems.distillation.on_policy_distillation import plain_ratio, teachers_word
from posttrain.systems.supervised_from_reward.dft import weighed_by_probability
from posttrain.systems.supervised_from_reward.gold import off_policy_demonstrations
from tests.losses.table import batch_of, value_and_gradient


def two_tokens(temperature: float = 1.0) -> Batch:
    """Hidden states are logits: the student's (0, log 3), q = (1/4, 3/4); the teacher's (0, 0), p = (1/2, 1/2)."""
    eye = torch.eye(2, dtype=torch.float64)
    student = torch.tensor([[[0.0, math.log(3)]]], dtype=torch.float64, requires_grad=True)
    return Batch(
        mask_BT=torch.ones(1, 1), hidden_BTD=student, head_VD=eye, temperature_B=torch.full((1,), temperature),
        ref_hidden_BTD=torch.zeros(1, 1, 2, dtype=torch.float64), ref_head_VD=eye,
    )  # fmt: skip


def value_and_slope(loss_BT: torch.Tensor, batch: Batch) -> tuple[float, list[float]]:
    (slope,) = torch.autograd.grad(loss_BT.sum(), batch["hidden_BTD"])
    return loss_BT.item(), slope[0, 0].tolist()


@pytest.mark.derived("supervised_loss/gkd")
def test_gkd_by_hand() -> None:
    """beta = 0: KL(p || q) = 1/2 log 2 + 1/2 log(2/3); by the logits q - p = (-1/4, 1/4).

    beta = 1: R = KL(q || p) = 1/4 log(1/2) + 3/4 log(3/2); by the logits q (log(q / p) - R).
    beta = 1/4: m = p/4 + 3q/4 = (5/16, 11/16); KL(p || m) = 1/2 log(8/5) + 1/2 log(8/11), S = KL(q || m) = 1/4 log(4/5) + 3/4 log(12/11);
    D = 1/4 KL(p || m) + 3/4 S; by the logits 3/4 q (log(q / m) - S).
    """
    R = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    S = 0.25 * math.log(4 / 5) + 0.75 * math.log(12 / 11)
    quarter = 0.25 * (0.5 * math.log(8 / 5) + 0.5 * math.log(8 / 11)) + 0.75 * S
    expected = {
        0.0: (0.5 * math.log(2) + 0.5 * math.log(2 / 3), [-0.25, 0.25]),
        1.0: (R, [0.25 * (math.log(0.5) - R), 0.75 * (math.log(1.5) - R)]),
        0.25: (quarter, [0.75 * 0.25 * (math.log(4 / 5) - S), 0.75 * 0.75 * (math.log(12 / 11) - S)]),
    }
    for beta, (value, slope) in expected.items():
        batch = two_tokens()
        got = value_and_slope(whole_distribution(batch, beta=beta), batch)
        assert got[0] == pytest.approx(value, abs=1e-12) and got[1] == pytest.approx(slope, abs=1e-12), beta
    # at temperature 2 the student's odds are sqrt(3) : 1, and a logit moves half as much
    batch, q = two_tokens(2.0), math.sqrt(3) / (1 + math.sqrt(3))
    _, slope = value_and_slope(whole_distribution(batch, beta=0.0), batch)
    assert slope == pytest.approx([-(q - 0.5) / 2, (q - 0.5) / 2], abs=1e-7)


@pytest.mark.derived("supervised_loss/topk-divergence")
def test_likeliest_tokens_and_the_rest_by_hand() -> None:
    """q = (1/8, 5/8, 1/4) and a teacher who says p(v_0) = 1/2 and no more: events (v_0, others) have p' = (1/2, 1/2), q' = (1/8, 7/8).

    KL(p' || q') = 1/2 log 4 + 1/2 log(4/7). Its slope by a logit z_v: dlog q'_0 = [v = 0] - q_v, dlog q'_1 = -q_0 dlog q'_0 / q'_1,
    so -1/2 ([v = 0] - q_v) (1 - (1/8)/(7/8)) for v = 0, whose own is -1/2 * 7/8 * 6/7 = -3/8; for others 1/2 q_v * 6/7 = 3/7 q_v.
    """
    logits = torch.tensor([[[0.0, math.log(5), math.log(2)]]], dtype=torch.float64, requires_grad=True)
    batch = Batch(
        mask_BT=torch.ones(1, 1), hidden_BTD=logits, head_VD=torch.eye(3, dtype=torch.float64), temperature_B=torch.ones(1),
        topk_id_BTK=torch.tensor([[[0]]]), topk_logp_BTK=torch.tensor([[[math.log(0.5)]]]),
    )  # fmt: skip
    value, slope = value_and_slope(topk_divergence(batch, beta=0.0), batch)
    assert value == pytest.approx(0.5 * math.log(4) + 0.5 * math.log(4 / 7), abs=1e-7)
    assert slope == pytest.approx([-3 / 8, 3 / 7 * 5 / 8, 3 / 7 / 4], abs=1e-7)
    # the reverse: q' log(q' / p') = 1/8 log(1/4) + 7/8 log(7/4)
    value, _ = value_and_slope(topk_divergence(batch, beta=1.0), batch)
    assert value == pytest.approx(0.125 * math.log(0.25) + 0.875 * math.log(1.75), abs=1e-7)


def test_a_token_that_neither_finds_possible_says_nothing() -> None:
    """Logits (0, -200) of both, k = 2: in 32 bits exp(-200) is 0, and so is the mixture there. D = 0, and so is its gradient."""
    for beta in (0.0, 0.5, 1.0):
        logits = torch.tensor([[[0.0, -200.0]]], requires_grad=True)
        batch = Batch(
            mask_BT=torch.ones(1, 1), hidden_BTD=logits, head_VD=torch.eye(2), temperature_B=torch.ones(1),
            topk_id_BTK=torch.tensor([[[0, 1]]]), topk_logp_BTK=torch.tensor([[[0.0, -200.0]]]),
        )  # fmt: skip
        value, slope = value_and_slope(topk_divergence(batch, beta=beta), batch)
        assert value == pytest.approx(0, abs=1e-6) and slope == pytest.approx([0, 0], abs=1e-6), beta


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 1.0])
def test_all_tokens_of_the_vocabulary_are_the_whole_divergence_and_fewer_never_more(beta: float) -> None:
    batch = laws.example()
    whole_BT = whole_distribution(batch, beta=beta)
    B, T, _ = batch["ref_hidden_BTD"].shape
    heat_N = batch["temperature_B"].repeat_interleave(T)
    for k in (1, 2, 3):
        ids, logp = likeliest(batch["ref_hidden_BTD"].flatten(0, 1), batch["ref_head_VD"], k, heat_N)
        top_BT = topk_divergence(batch.but(topk_id_BTK=ids.view(B, T, k), topk_logp_BTK=logp.view(B, T, k)), beta=beta)
        if k == 3:
            torch.testing.assert_close(top_BT, whole_BT, atol=1e-9, rtol=1e-6)
        assert bool((top_BT <= whole_BT + 1e-12).all()) and float(top_BT.max()) > 0.01


@pytest.mark.derived("advantage/teachers-word")
def test_a_teachers_word_by_hand() -> None:
    """log teacher - log student is (1, -2, 3); the second token is not the policy's own, and earns and counts nothing.

    discount 0: each token its own; discount 1/2: A_0 = 1 + 1/4 * 3 = 1.75, A_2 = 3.
    """
    batch = Batch(
        mask_BT=torch.tensor([[1.0, 0.0, 1.0]]), logp_BT=torch.zeros(1, 3), old_logp_BT=torch.tensor([[-2.0, -1.0, -4.0]]),
        ref_logp_BT=torch.tensor([[-1.0, -3.0, -1.0]]),
    )  # fmt: skip
    assert teachers_word(batch).tolist() == [[1.0, 0.0, 3.0]]
    assert teachers_word(batch, discount=0.5).tolist() == [[1.75, 0.0, 3.0]]
    assert teachers_word(batch, coef=2.0).tolist() == [[2.0, 0.0, 6.0]]


@pytest.mark.derived("policy_loss/plain-ratio")
def test_importance_weights_by_hand() -> None:
    """r = 3 and A = 2: L = -6, and by logp -r A = -6; r = 1/4 and A = -1: L = 1/4, and by logp 1/4. Nothing is clipped."""
    logp = torch.tensor([[math.log(3), math.log(0.25)]], requires_grad=True)
    batch = Batch(
        mask_BT=torch.ones(1, 2), logp_BT=logp, old_logp_BT=torch.zeros(1, 2), adv_BT=torch.tensor([[2.0, -1.0]])
    )
    loss_BT = plain_ratio(batch)
    loss_BT.sum().backward()
    assert loss_BT[0].tolist() == pytest.approx([-6.0, 0.25]) and logp.grad[0].tolist() == pytest.approx([-6.0, 0.25])


def test_mistakes_are_one_sentence() -> None:
    batch = laws.example()
    with pytest.raises(UserError, match=r"beta is -0.1; it is a share"):
        whole_distribution(batch, beta=-0.1)
    with pytest.raises(UserError, match="beta is 2; it is a share"):
        topk_divergence(batch, beta=2)
    with pytest.raises(UserError, match=r"discount is 1.5; it is a share"):
        teachers_word(batch, discount=1.5)


# ---- relatives of imitation


@pytest.mark.derived("supervised_loss/dft")
def test_dft_by_hand() -> None:
    """p = 1/2: L = 1/2 log 2, and by log p only -p = -1/2: had the weight a gradient, it would be -p (1 + log p) = -0.153; p = 1: L = 0, -1."""
    logp = torch.tensor([[math.log(0.5), 0.0]], dtype=torch.float64, requires_grad=True)
    loss_BT = weighed_by_probability(Batch(mask_BT=torch.ones(1, 2), logp_BT=logp))
    loss_BT.sum().backward()
    assert loss_BT[0].tolist() == pytest.approx([0.5 * math.log(2), 0.0])
    assert logp.grad[0].tolist() == pytest.approx([-0.5, -1.0])


def three_tokens() -> Batch:
    """Two rows, the second of one token. The old policy finds the tokens 0.5, 0.02, 0.8 likely, the start 0.25, 0.5, 1."""
    rows = {
        "logp": [[-1.0, -2.0, -3.0], [-1.0]],
        "ref_logp": [[0.5, 0.02, 0.8], [0.3]],
        "start_logp": [[0.25, 0.5, 1.0], [0.4]],
    }
    logs = {k: rows[k] if k == "logp" else [[math.log(p) for p in row] for row in rows[k]] for k in rows}
    return batch_of(logs["logp"], ref_logp=logs["ref_logp"], start_logp=logs["start_logp"])


@pytest.mark.derived("supervised_loss/gold")
def test_gold_by_hand() -> None:
    """ahead = 2, tokens after the end count 1.

    s: Q = (1/4 + 1/2 + 1, 1/2 + 1 + 1, 1 + 1 + 1) and (0.4 + 1 + 1); w = (0.5, 0.1 for 0.02, 0.8) and (0.3); L = -w Q log pi, by log pi -w Q.
    p: r = log p + 10, at least 1; Q_0 = (10 - log 4) + (10 - log 2) + 10, and w of the second is 0.02.
    """
    loss_BT, grad_BT = value_and_gradient(off_policy_demonstrations, three_tokens(), ahead=2)
    pull = [[0.5 * 1.75, 0.1 * 2.5, 0.8 * 3.0], [0.3 * 2.4]]
    for b, row in enumerate(pull):
        assert grad_BT[b, : len(row)].tolist() == pytest.approx([-x for x in row])
        assert loss_BT[b, : len(row)].tolist() == pytest.approx([x * (i + 1) for i, x in enumerate(row)])
    _, grad_BT = value_and_gradient(off_policy_demonstrations, three_tokens(), ahead=2, kind="p")
    assert grad_BT[0, 0].item() == pytest.approx(-0.5 * (30 - math.log(8)))
    assert grad_BT[0, 1].item() == pytest.approx(-0.02 * (30 - math.log(2)))
    _, grad_BT = value_and_gradient(off_policy_demonstrations, three_tokens(), ahead=0, least=0.6)
    assert grad_BT[0].tolist() == pytest.approx([-0.6 * 0.25, -0.6 * 0.5, -0.8]), (
        "the token alone, and another least weight"
    )
    floored = three_tokens().but(start_logp_BT=torch.full((2, 3), -9.5, dtype=torch.float64))
    _, grad_BT = value_and_gradient(off_policy_demonstrations, floored, ahead=0, kind="p")
    assert grad_BT[0, 0].item() == pytest.approx(-0.5), "log p + 10 = 0.5 is raised to the floor 1"
    with pytest.raises(UserError, match="no reward of GOLD"):
        off_policy_demonstrations(three_tokens(), kind="q")
