"""Products in pieces, and how attention is laid out for a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posttrain.engines.native.attention import mates, settings, work
from posttrain.engines.native.products import add_norm, split_product
from posttrain.engines.native.slots import _rounded


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_a_product_in_pieces_adds_up_to_the_whole(pieces: int) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(3, 128, dtype=torch.float64), torch.randn(5, 128, dtype=torch.float64)
    made = split_product(x, w, pieces)
    assert made.shape == ((3, 5) if pieces == 1 else (pieces, 3, 5))
    whole = made if pieces == 1 else made.double().sum(0)
    torch.testing.assert_close(whole, x @ w.T, atol=1e-4, rtol=1e-5)


def test_what_does_not_divide_stays_whole() -> None:
    assert split_product(torch.randn(3, 40), torch.randn(5, 40), 4).shape == (3, 5)


def test_the_norm_adds_pieces_up_and_rounds_their_sum_once() -> None:
    """1 + 2^-9 - 1 in float32 is 2^-9; with each piece rounded to bfloat16 first it would be 0."""
    y = torch.tensor([[[1.0 + 2**-9, 3.0]], [[-1.0, 1.0]]])
    x, weight = torch.zeros(1, 2), torch.ones(2, dtype=torch.bfloat16)
    out = add_norm(x, y, None, weight, 0.0)
    assert x.tolist() == [[2**-9, 4.0]]
    torch.testing.assert_close(out.float(), torch.tensor([[2**-9 / 8**0.5, 2**0.5]]), rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize(
    ("slots", "heads", "kv_heads", "D", "most"),
    [(256, 9, 3, 64, 1), (1024, 9, 3, 64, 4), (1024, 14, 2, 64, 1), (256, 12, 2, 128, 2), (128, 12, 2, 128, 1), (256, 28, 4, 128, 2)],
)  # fmt: skip
def test_mates_fit_into_sixteen_columns_and_leave_programs(
    slots: int, heads: int, kv_heads: int, D: int, most: int
) -> None:
    assert mates(slots, heads, kv_heads, D) == most
    assert most * heads // kv_heads <= 16
    assert set(settings(slots * kv_heads // most, D, most)) == {"STEP", "num_warps", "num_stages"}


def test_the_work_of_attention_is_a_list_of_spans():
    """Of slots with 0, 1, 9 and 17 pages, 8 a span: one, one, two and three; of pairs of them, 16 a span: one and two."""
    pages = np.array([0, 1, 9, 17])
    assert [divmod(x, 1 << 16) for x in work(pages, 8, 1).tolist()] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (2, 1),
        (3, 0),
        (3, 1),
        (3, 2),
    ]
    assert [divmod(x, 1 << 16) for x in work(pages, 8, 2).tolist()] == [(0, 0), (1, 0), (1, 1)]
    assert len(work(pages[:3], 8, 2)) == 2  # the last has no mate


@pytest.mark.parametrize(
    ("spans", "size"), [(16, 16), (17, 24), (24, 24), (25, 32), (33, 48), (49, 64), (65, 96), (200, 256)]
)
def test_lists_have_few_lengths(spans, size):
    assert _rounded(spans, 16) == size
