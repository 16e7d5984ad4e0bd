"""The operations between the products of a decode step, by hand; split-K products; attention's schedule; tokens drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posttrain.inference.attention import attend_plain, best_slots_per_program, launch_config, span_schedule
from posttrain.inference.pick import SlotState, pick
from posttrain.inference.products import Placement, add_norm, embed_norm, split_k_matmul
from posttrain.inference.slots import _rounded
from posttrain.models.elementwise import silu_and_mul


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_partial_sums_add_up_to_the_product(splits: int) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(3, 128, dtype=torch.float64), torch.randn(5, 128, dtype=torch.float64)
    product = split_k_matmul(x, w, splits)
    assert product.shape == ((3, 5) if splits == 1 else (splits, 3, 5))
    whole = product if splits == 1 else product.double().sum(0)
    torch.testing.assert_close(whole, x @ w.T, atol=1e-4, rtol=1e-5)


def test_an_inner_dimension_that_does_not_divide_is_not_split() -> None:
    assert split_k_matmul(torch.randn(3, 40), torch.randn(5, 40), 4).shape == (3, 5)


def test_the_norm_adds_partial_sums_and_rounds_once() -> None:
    """1 + 2^-9 - 1 in float32 is 2^-9; with each partial sum rounded to bfloat16 first it would be 0."""
    y = torch.tensor([[[1.0 + 2**-9, 3.0]], [[-1.0, 1.0]]])
    x, weight = torch.zeros(1, 2), torch.ones(2, dtype=torch.bfloat16)
    out = add_norm(x, y, None, weight, 0.0)
    assert x.tolist() == [[2**-9, 4.0]]
    torch.testing.assert_close(out.float(), torch.tensor([[2**-9 / 8**0.5, 2**0.5]]), rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize(
    ("slots", "heads", "kv_heads", "D", "most"),
    [(256, 9, 3, 64, 1), (1024, 9, 3, 64, 4), (1024, 14, 2, 64, 1), (256, 12, 2, 128, 2), (128, 12, 2, 128, 1), (256, 28, 4, 128, 2)],
)  # fmt: skip
def test_slots_per_program_fit_into_sixteen_columns_and_leave_programs(
    slots: int, heads: int, kv_heads: int, D: int, most: int
) -> None:
    assert best_slots_per_program(slots, heads, kv_heads, D) == most
    assert most * heads // kv_heads <= 16
    assert set(launch_config(slots * kv_heads // most, D, most)) == {"STEP", "num_warps", "num_stages"}


def test_the_schedule_of_attention_is_a_list_of_spans():
    """Of slots with 0, 1, 9 and 17 pages, 8 per span: one, one, two and three; of pairs of them, 16 per span: one and two."""
    pages = np.array([0, 1, 9, 17])
    alone = [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    assert [divmod(x, 1 << 16) for x in span_schedule(pages, 8, 1).tolist()] == alone
    assert [divmod(x, 1 << 16) for x in span_schedule(pages, 8, 2).tolist()] == [(0, 0), (1, 0), (1, 1)]
    assert len(span_schedule(pages[:3], 8, 2)) == 2  # the last program has one slot


@pytest.mark.parametrize(
    ("spans", "size"), [(16, 16), (17, 24), (24, 24), (25, 32), (33, 48), (49, 64), (65, 96), (200, 256)]
)
def test_schedules_have_few_lengths(spans, size):
    assert _rounded(spans, 16) == size


def drawn(logits: torch.Tensor, keys: torch.Tensor, position: int) -> SlotState:
    state = SlotState.empty(len(logits), 4, torch.device("cpu"))
    state.key.copy_(keys)
    state.num_generated.fill_(position)
    state.max_tokens.fill_(4)
    state.alive.fill_(True)
    pick(logits, state, torch.tensor([-1]), "plain")
    return state


def test_pick_draws_the_softmax():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0]).repeat(20000, 1)
    state = drawn(logits, torch.arange(20000) * 7919, 0)
    want = torch.softmax(logits[0], -1)
    share = torch.bincount(state.token, minlength=4) / 20000
    assert (share - want).abs().max() < 4 * (0.25 / 20000) ** 0.5  # four standard errors at most
    torch.testing.assert_close(state.logp[:, 0], torch.log(want)[state.token])
    assert (
        state.num_generated.eq(1).all() and state.cache_len.eq(1).all() and torch.equal(state.tokens[:, 0], state.token)
    )


def test_pick_reaches_every_block_and_never_an_impossible_token():
    logits = torch.full((4000, 2500), -torch.inf)
    logits[:, [3, 1023, 1024, 2499]] = 0.0  # a quarter each, in all three blocks of 1024
    assert set(drawn(logits, torch.arange(4000), 1).token.tolist()) == {3, 1023, 1024, 2499}


def test_plain_versions_by_hand():
    # keys 0 and 1 at positions 0 and 1 of page 2, the rest masked: weights are softmax(0, 1/sqrt(4) * 2) = softmax(0, 1)
    q = torch.full((1, 1, 4), 0.5)
    keys = torch.zeros(4, 1, 3, 4)
    keys[2, 0, 1] = 1.0
    values = torch.full((4, 1, 3, 4), 7.0)
    values[2, 0] = torch.tensor([0.0, 1.0, 9.0]).view(3, 1)
    place = Placement(torch.tensor([[2, 1]], dtype=torch.int32), torch.tensor([0]), torch.tensor([1]))
    out = attend_plain(q, keys, values, place)
    torch.testing.assert_close(out, torch.full((1, 1, 4), torch.sigmoid(torch.tensor(1.0)).item()))
    got = silu_and_mul(torch.tensor([[0.0, 1.0]]), torch.tensor([1.0, 1.0]))  # silu(1) * 2
    torch.testing.assert_close(got, torch.tensor([[1.0 / (1 + 2.718281828**-1) * 2]]))
    # (1, 2) + (2, 1) + 0 = (3, 3), whose rms is 3; in place, and times the weight (1, 5)
    x = torch.tensor([[1.0, 2.0]])
    got = add_norm(x, torch.tensor([[2.0, 1.0]]), torch.zeros(2), torch.tensor([1.0, 5.0]), 0.0)
    assert x.tolist() == [[3.0, 3.0]]
    torch.testing.assert_close(got, torch.tensor([[1.0, 5.0]]))
    x, got = embed_norm(torch.tensor([1]), torch.tensor([[0.0, 0.0], [3.0, 3.0]]), torch.tensor([1.0, 5.0]), 0.0)
    assert x.tolist() == [[3.0, 3.0]]
    torch.testing.assert_close(got, torch.tensor([[1.0, 5.0]]))
