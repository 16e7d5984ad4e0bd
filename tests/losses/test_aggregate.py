"""Aggregations by hand on two answers of three tokens and one; the objective; garbage in padding."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core import laws
from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.losses.aggregate import (
    Totals,
    answer_mean,
    constant,
    list_mean,
    pair_mean,
    sequence_mean,
    sequence_sum,
    token_mean,
)
from posttrain.losses.objective import objective, zero_padding
from posttrain.losses.policy.ppo import ppo
from posttrain.losses.preference.dpo import dpo
from posttrain.losses.regularisers.kl import kl
from posttrain.losses.supervised.sft import sft
from tests.losses.table import batch_of

LOSS = [[1.0, 2.0, 3.0], [4.0]]


@pytest.mark.derived("aggregate/token-mean", "aggregate/sequence-mean", "aggregate/sequence-sum", "aggregate/constant")
@pytest.mark.parametrize(
    ("part", "params", "value", "weights"),  # weights = dL/dloss
    [
        (token_mean, {}, 2.5, [[1 / 4] * 3, [1 / 4, 0, 0]]),  # 10 / 4 tokens
        (sequence_mean, {}, 3.0, [[1 / 6] * 3, [1 / 2, 0, 0]]),  # (6/3 + 4/1) / 2 answers
        (sequence_sum, {}, 5.0, [[1 / 2] * 3, [1 / 2, 0, 0]]),  # 10 / 2
        (constant, {"length": 5}, 1.0, [[1 / 10] * 3, [1 / 10, 0, 0]]),  # 10 / (2 * 5)
    ],
)
def test_table(part, params, value, weights) -> None:
    batch = batch_of(LOSS)
    loss_BT = batch.logp_BT.clone().requires_grad_()
    out = part(loss_BT, batch, Totals.of(batch), **params)
    assert out.item() == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(out, loss_BT)[0], torch.tensor(weights, dtype=torch.float64))


def test_a_row_without_credit_is_no_answer() -> None:
    batch = batch_of([*LOSS, [9.0]])
    batch.mask_BT[2] = 0.0
    totals = Totals.of(batch)
    assert (totals.tokens, totals.sequences) == (4, 2)
    assert sequence_mean(batch.logp_BT, batch, totals).item() == pytest.approx(3.0)


@pytest.mark.derived("aggregate/pair-mean")
def test_pairs_with_a_dead_half_do_not_count() -> None:
    # losses 1 and 7, the second pair's rejected answer failed: the mean is 1 over one pair
    batch = batch_of([[0.0]] * 4, pairs=[(0, 1), (2, 3)])
    batch.mask_BT[3] = 0.0
    assert Totals.of(batch).pairs == 1
    assert pair_mean(torch.tensor([1.0, 7.0]), batch, Totals.of(batch)).item() == 1.0


@pytest.mark.derived("aggregate/list-mean")
def test_lists_with_a_dead_answer_and_lists_of_one_do_not_count() -> None:
    # losses 6 and 2 of the lists (0, 1, 2) and (3, 4); answer 6 of the list (5, 6) is dead, (7) is alone: (6 + 2) / 2 = 4; dL/dloss = 1/2, 1/2, 0, 0
    batch = batch_of([[0.0]] * 8)
    batch.mask_BT[6] = 0.0
    batch = batch.but(ranked_LK=torch.tensor([[0, 1, 2], [3, 4, -1], [5, 6, -1], [7, -1, -1]]))
    loss_L = torch.tensor([6.0, 2.0, 9.0, 5.0], requires_grad=True)
    out = list_mean(loss_L, batch, Totals.of(batch))
    out.backward()
    assert out.item() == 4.0 and loss_L.grad is not None and loss_L.grad.tolist() == [0.5, 0.5, 0.0, 0.0]


@pytest.mark.derived("aggregate/answer-mean")
def test_answers_that_nobody_labelled_do_not_count() -> None:
    # labels good, bad, none, good; the last answer is dead: (2 + 4) / 2 = 3, dL/dloss = 1/2, 1/2, 0, 0
    batch = batch_of([[0.0]] * 4)
    batch.mask_BT[3] = 0.0
    labels = torch.tensor([1.0, 0.0, math.nan, 1.0])
    # where nobody labelled any, all live ones count: (2 + 4 + 9) / 3 = 5, 1/3 each
    for more, value, weights in (({"label_B": labels}, 3.0, [1 / 2, 1 / 2, 0, 0]), ({}, 5.0, [1 / 3, 1 / 3, 1 / 3, 0])):
        loss_B = torch.tensor([2.0, 4.0, 9.0, 7.0], requires_grad=True)
        out = answer_mean(loss_B, batch.but(**more), Totals.of(batch.but(**more)))
        out.backward()
        assert out.item() == value and loss_B.grad is not None
        torch.testing.assert_close(loss_B.grad, torch.tensor(weights))


def test_overflow_in_padding_does_not_poison() -> None:
    batch = batch_of(LOSS)
    loss_BT = torch.where(batch.mask_BT > 0, batch.logp_BT, math.inf)
    for part in (token_mean, sequence_mean, sequence_sum, constant.but(length=64)):
        assert torch.isfinite(part(loss_BT, batch, Totals.of(batch))), part


def test_an_empty_batch_is_zero_not_nan() -> None:
    batch = batch_of([[1.0]])
    batch.mask_BT[:] = 0.0
    for part in (token_mean, sequence_mean, sequence_sum, constant.but(length=64)):
        assert part(batch.logp_BT, batch, Totals.of(batch)).item() == 0.0


def test_totals_of_ranks_add_up() -> None:
    batch = laws.example()
    halves = [batch.rows(torch.arange(0, 4)), batch.rows(torch.arange(4, 8))]
    assert Totals.of(halves[0]) + Totals.of(halves[1]) == Totals.of(batch)


# ---- the objective


def test_objective_is_loss_plus_terms() -> None:
    # sft: mean of (1, 2, 3) = 2; kl k1, coef .5: logp - ref = 1 everywhere: .5; total 2.5
    batch = batch_of([[-1.0, -2.0], [-3.0]], ref_logp=[[-2.0, -3.0], [-4.0]])
    total, parts = objective(batch, Totals.of(batch), sft, token_mean, [kl.but(kind="k1", coef=0.5)])
    assert total.item() == pytest.approx(2.5)
    assert {k: v.item() for k, v in parts.items()} == {"sft": pytest.approx(2.0), "kl": pytest.approx(0.5)}


def test_two_terms_of_one_name_both_count() -> None:
    batch = batch_of([[-1.0]], ref_logp=[[-2.0]])
    term = kl.but(kind="k1", coef=0.5)
    total, parts = objective(batch, Totals.of(batch), sft, token_mean, [term, term])
    assert total.item() == pytest.approx(2.0)
    assert parts["kl"].item() == pytest.approx(1.0)


def test_pair_losses_are_averaged_over_pairs_and_their_terms_over_tokens() -> None:
    # both rows at the reference but for the term: dpo = log 2 for each pair, kl k1 coef 1 = 0
    batch = batch_of([[-1.0, -1.0], [-1.0]], pairs=[(0, 1)], ref_logp=[[-1.0, -1.0], [-1.0]])
    total, parts = objective(batch, Totals.of(batch), dpo, sequence_sum, [kl.but(kind="k1", coef=1.0)])
    assert parts["dpo"].item() == pytest.approx(math.log(2))
    assert total.item() == pytest.approx(math.log(2))
    assert objective(batch, Totals.of(batch), dpo, pair_mean)[0].item() == pytest.approx(math.log(2))


def test_pair_mean_of_tokens_is_refused() -> None:
    batch = laws.example()
    with pytest.raises(UserError, match=r"ppo is a loss per token.*aggregate=token_mean"):
        objective(batch, Totals.of(batch), ppo, pair_mean)
    with pytest.raises(UserError, match="kl is a loss per token"):
        objective(batch, Totals.of(batch), dpo, pair_mean, [kl])


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("name", ["ppo", "gspo", "cispo", "dual_clip", "dpo", "bradley_terry"])
def test_no_garbage_outside_the_mask_reaches_the_gradient(name: str, garbage: float) -> None:
    loss, clean = find(name), laws.example()
    streams = {n: torch.where(laws.over(clean.mask_BT > 0, clean[n]), clean[n], garbage) for n in laws.STREAMS}
    dirty = clean.but(**streams, score_B=torch.where(clean.valid_B, clean["score_B"], garbage))
    grads = []
    for batch in (clean, dirty):
        leaves = {n: batch[n].clone().requires_grad_() for n in laws.LEAVES}
        total, _ = objective(batch.but(**leaves), Totals.of(batch), loss, token_mean, [find("value_loss"), kl])
        grads.append(torch.autograd.grad(total, list(leaves.values()), allow_unused=True))
    for a, b in zip(*grads, strict=True):
        if a is not None:
            torch.testing.assert_close(b, a, rtol=0, atol=0)


def test_quiet_keeps_rewards_of_environment_tokens() -> None:
    batch = batch_of([[0.0, 0.0]], reward=[[1.0, 2.0]])
    batch.mask_BT[0, 1] = 0.0
    assert zero_padding(batch)["reward_BT"].tolist() == [[1.0, 2.0]]
