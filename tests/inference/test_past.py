"""New tokens after a past: gathered end to end for flash attention, they see what they see through a mask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.inference import fused
from posttrain.inference.fused import Fused, PackedPast, Past


def one_by_one(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest_q: int, longest_k: int) -> Tensor:
    """What the kernel is documented to do, by its definition: a sequence's queries are the last of its keys."""
    out = torch.zeros_like(q)
    assert cu_q.dtype == cu_k.dtype == torch.int32 and len(cu_q) == len(cu_k) and int(cu_k[-1]) <= len(k)
    assert longest_q >= int(cu_q.diff().max()) and longest_k >= int(cu_k.diff().max())
    for a, b, c, d in zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:], strict=True):
        for i in range(int(b - a)):
            last = int(d - c) - int(b - a) + i + 1
            for h in range(q.shape[1]):
                g = h // (q.shape[1] // k.shape[1])
                weight = torch.softmax(k[c : c + last, g] @ q[a + i, h] / q.shape[2] ** 0.5, 0)
                out[a + i, h] = weight @ v[c : c + last, g]
    return out


@pytest.mark.parametrize(
    ("pasts", "counts", "L"),
    [
        ([5, 0, 12], [3, 4, 1], 4),
        ([7], [8], 8),
        ([15, 3], [1, 6], 6),
        ([20], [0], 3),  # a full table, and more padding than there are places: all of it lies behind
        ([20, 19, 20], [0, 1, 0], 9),
        ([4, 0, 8], [4, 0, 12], 12),  # whole pages; one row has nothing at all
    ],
)
def test_a_packed_past_is_a_masked_one(
    pasts: list[int], counts: list[int], L: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "varlen", one_by_one)
    size, M, heads, kv, D, P = 4, 5, 4, 2, 8, len(pasts)
    draw = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(1 + P * M, kv, size, D, generator=draw) for _ in range(2))
    table_PM = 1 + torch.randperm(P * M, generator=draw).view(P, M).int()
    q = torch.randn(P, L, heads, D, generator=draw)
    past_P = torch.tensor(pasts)
    got = PackedPast.of(table_PM, past_P, L, size).attend(q, keys, values)

    positions_PL = past_P.unsqueeze(-1) + torch.arange(L)
    rows_PHM = table_PM.long().unsqueeze(1) * kv + torch.arange(kv).unsqueeze(-1)
    mask = (torch.arange(M * size) <= positions_PL.unsqueeze(-1)).unsqueeze(1)
    expected = Past(rows_PHM, mask).attend(q, keys, values)
    assert got.shape == expected.shape == (P, L, heads * D)
    for i, n in enumerate(counts):  # the rest is padding
        torch.testing.assert_close(got[i, :n], expected[i, :n])


@pytest.mark.parametrize(
    ("wide", "dtype", "D", "card", "packed"),
    [
        (True, torch.bfloat16, 8, (9, 0), True),
        (True, torch.float32, 8, (9, 0), False),
        (False, torch.bfloat16, 8, (9, 0), False),
        (True, torch.float16, 8, (7, 5), False),
        (True, torch.bfloat16, 12, (9, 0), False),
        (True, torch.bfloat16, 512, (9, 0), False),
    ],
)
def test_flash_attention_reads_the_past_on_a_gpu_in_half_precision(
    wide: bool, dtype: torch.dtype, D: int, card: tuple[int, int], packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where it takes such heads. Of the table no more columns than the longest sequence needs: 9 positions take 3 pages of 4."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: card)
    keys = torch.zeros(1, 3, 2, 4, D, dtype=dtype)
    pages: Any = SimpleNamespace(keys=keys, size=4, needed=lambda positions: -(-positions // 4))
    config = SimpleNamespace(num_heads=4, num_kv_heads=2)
    whole: Any = SimpleNamespace(wide=wide, model=SimpleNamespace(config=config))
    table_PM, past_P = torch.zeros(2, 50, dtype=torch.int32), torch.tensor([5, 2])
    found = Fused._past(whole, table_PM, past_P.unsqueeze(-1) + torch.arange(4), past_P, pages, 9)
    assert isinstance(found, PackedPast if packed else Past)
    if isinstance(found, PackedPast):
        assert found.longest == 3 * 4 + 4 and len(found.page_K) == 2 * found.longest
