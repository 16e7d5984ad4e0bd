"""Queries, keys and values of a packed batch from one product: rotated to their positions, keys and values gathered for every
sequence that attends to them.

A prompt's keys are needed by its own sequence and by every answer to it. Backward sums the gradients of all copies of a key in a
fixed order, so that the same batch gives the same gradient bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posttrain.models.kernels import tl, triton, use_kernels

if TYPE_CHECKING:
    from posttrain.models.packed import PackedBatch


def rotate_and_gather(qkv_NHD: Tensor, kv_heads: int, packed: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
    """q (N, H, D), k and v (K, H_kv, D), with rotary positions (half-split layout)."""
    if use_kernels(qkv_NHD):
        qkv: tuple[Tensor, Tensor, Tensor] = _RotateAndGather.apply(qkv_NHD.contiguous(), kv_heads, packed)  # type: ignore[no-untyped-call]
        return qkv
    heads = qkv_NHD.shape[1] - 2 * kv_heads
    q, k, v = qkv_NHD.split((heads, kv_heads, kv_heads), 1)
    return rotated(q, packed), rotated(k, packed)[packed.source_K], v[packed.source_K]


def rotated(x_NHD: Tensor, packed: PackedBatch) -> Tensor:
    """Rotary positions of packed tokens, half-split layout."""
    assert packed.rope is not None
    c, s = (table.unsqueeze(1).to(x_NHD.dtype) for table in packed.rope)
    a, b = x_NHD.chunk(2, -1)
    return torch.cat((a * c - b * s, b * c + a * s), -1)


class _RotateAndGather(torch.autograd.Function):
    """Rotated copies; the gradient is the sum over copies, rotated back."""

    @staticmethod
    def forward(ctx: Any, qkv_NHD: Tensor, kv_heads: int, packed: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
        assert packed.rope is not None
        (N, all_heads, D), K = qkv_NHD.shape, len(packed.source_K)
        heads = all_heads - 2 * kv_heads
        q, k, v = (qkv_NHD.new_empty(n, h, D) for n, h in ((N, heads), (K, kv_heads), (K, kv_heads)))
        _rotate_and_gather[(max(N, K),)](
            qkv_NHD, *packed.rope, packed.source_K, q, k, v, N, K, heads, kv_heads,
            H_PAD=triton.next_power_of_2(heads), KV_PAD=triton.next_power_of_2(kv_heads), HALF=D // 2, num_warps=2,
        )  # fmt: skip
        ctx.packed, ctx.shape = packed, qkv_NHD.shape
        return q, k, v

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, None, None]:
        packed, (N, _, D) = ctx.packed, ctx.shape
        out = dq.new_empty(ctx.shape)
        _rotate_and_gather_backward[(N,)](
            dq.contiguous(), dk.contiguous(), dv.contiguous(), *packed.rope, packed.order_K, packed.first_N, out,
            dq.shape[1], dk.shape[1], H_PAD=triton.next_power_of_2(dq.shape[1]), KV_PAD=triton.next_power_of_2(dk.shape[1]),
            HALF=D // 2, num_warps=2,
        )  # fmt: skip
        return out, None, None


if triton is not None:

    @triton.jit
    def _rotate(x, at, y, to, mask_in, c, s, HALF: tl.constexpr):
        """Heads of x at offsets `at`, rotated by the angle with this cosine and sine, written to y at offsets `to`."""
        a = tl.load(x + at, mask=mask_in, other=0.0).to(tl.float32)
        b = tl.load(x + at + HALF, mask=mask_in, other=0.0).to(tl.float32)
        tl.store(y + to, (a * c - b * s).to(y.dtype.element_ty), mask=mask_in)
        tl.store(y + to + HALF, (b * c + a * s).to(y.dtype.element_ty), mask=mask_in)

    @triton.jit
    def _rotate_and_gather(
        qkv, cos, sin, source, q, k, v, N, K, H, KV, H_PAD: tl.constexpr, KV_PAD: tl.constexpr, HALF: tl.constexpr
    ):
        n = tl.program_id(0).to(tl.int64)
        D: tl.constexpr = 2 * HALF
        i, h, g = tl.arange(0, HALF), tl.arange(0, H_PAD), tl.arange(0, KV_PAD)
        if n < N:
            at = (n * (H + 2 * KV) + h)[:, None] * D + i[None, :]
            c, s = tl.load(cos + n * HALF + i)[None, :], tl.load(sin + n * HALF + i)[None, :]
            _rotate(qkv, at, q, (n * H + h)[:, None] * D + i[None, :], (h < H)[:, None], c, s, HALF)
        if n < K:
            t, kv_mask = tl.load(source + n).to(tl.int64), (g < KV)[:, None]
            at, to = (t * (H + 2 * KV) + H + g)[:, None] * D + i[None, :], (n * KV + g)[:, None] * D + i[None, :]
            c, s = tl.load(cos + t * HALF + i)[None, :], tl.load(sin + t * HALF + i)[None, :]
            _rotate(qkv, at, k, to, kv_mask, c, s, HALF)
            tl.store(v + to, tl.load(qkv + at + KV * D, mask=kv_mask, other=0.0), mask=kv_mask)
            tl.store(v + to + HALF, tl.load(qkv + at + KV * D + HALF, mask=kv_mask, other=0.0), mask=kv_mask)

    @triton.jit
    def _rotate_and_gather_backward(
        dq, dk, dv, cos, sin, order, first, out, H, KV, H_PAD: tl.constexpr, KV_PAD: tl.constexpr, HALF: tl.constexpr
    ):
        n = tl.program_id(0).to(tl.int64)
        D: tl.constexpr = 2 * HALF
        i, h, g = tl.arange(0, HALF), tl.arange(0, H_PAD), tl.arange(0, KV_PAD)
        c, s = tl.load(cos + n * HALF + i)[None, :], tl.load(sin + n * HALF + i)[None, :]
        to = (n * (H + 2 * KV) + h)[:, None] * D + i[None, :]
        _rotate(dq, (n * H + h)[:, None] * D + i[None, :], out, to, (h < H)[:, None], c, -s, HALF)
        kv_mask = (g < KV)[:, None]
        ka, kb = tl.zeros((KV_PAD, HALF), tl.float32), tl.zeros((KV_PAD, HALF), tl.float32)
        va, vb = tl.zeros((KV_PAD, HALF), tl.float32), tl.zeros((KV_PAD, HALF), tl.float32)
        for j in range(tl.load(first + n), tl.load(first + n + 1)):
            copy = (tl.load(order + j).to(tl.int64) * KV + g)[:, None] * D + i[None, :]
            ka += tl.load(dk + copy, mask=kv_mask, other=0.0).to(tl.float32)
            kb += tl.load(dk + copy + HALF, mask=kv_mask, other=0.0).to(tl.float32)
            va += tl.load(dv + copy, mask=kv_mask, other=0.0).to(tl.float32)
            vb += tl.load(dv + copy + HALF, mask=kv_mask, other=0.0).to(tl.float32)
        into = (n * (H + 2 * KV) + H + g)[:, None] * D + i[None, :]
        tl.store(out + into, (ka * c + kb * s).to(out.dtype.element_ty), mask=kv_mask)
        tl.store(out + into + HALF, (kb * c - ka * s).to(out.dtype.element_ty), mask=kv_mask)
        tl.store(out + into + KV * D, va.to(out.dtype.element_ty), mask=kv_mask)
        tl.store(out + into + KV * D + HALF, vb.to(out.dtype.element_ty), mask=kv_mask)
