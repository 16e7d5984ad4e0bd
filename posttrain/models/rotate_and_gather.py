"""Queries, keys and values of a stream from one product: turned to their places, each key and value copied to all who see it.

A prompt's keys are wanted by its own sequence and by every answer to it. Backward adds up what came back for each, in a fixed
order, so that the same batch gives the same gradient bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posttrain.models.kernels import serve, tl, triton

if TYPE_CHECKING:
    from posttrain.models.packed import Stream


def spread(qkv_NHD: Tensor, kv_heads: int, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
    """q (N, H, D), k and v (K, H_kv, D), with positions as rotations of halves."""
    if serve(qkv_NHD):
        return _Spread.apply(qkv_NHD.contiguous(), kv_heads, stream)
    heads = qkv_NHD.shape[1] - 2 * kv_heads
    q, k, v = qkv_NHD.split((heads, kv_heads, kv_heads), 1)
    return turned(q, stream), turned(k, stream)[stream.source_K], v[stream.source_K]


def turned(x_NHD: Tensor, stream: Stream) -> Tensor:
    """Rotary positions of packed tokens, half-split layout."""
    assert stream.rope is not None
    c, s = (table.unsqueeze(1).to(x_NHD.dtype) for table in stream.rope)
    a, b = x_NHD.chunk(2, -1)
    return torch.cat((a * c - b * s, b * c + a * s), -1)


class _Spread(torch.autograd.Function):
    """Copies of rotations; the gradient is the rotation back of the sum over copies."""

    @staticmethod
    def forward(ctx: Any, qkv_NHD: Tensor, kv_heads: int, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
        assert stream.rope is not None
        (N, all_heads, D), K = qkv_NHD.shape, len(stream.source_K)
        heads = all_heads - 2 * kv_heads
        q, k, v = (qkv_NHD.new_empty(n, h, D) for n, h in ((N, heads), (K, kv_heads), (K, kv_heads)))
        _spread[(max(N, K),)](
            qkv_NHD, *stream.rope, stream.source_K, q, k, v, N, K, heads, kv_heads,
            WIDE=triton.next_power_of_2(heads), FEW=triton.next_power_of_2(kv_heads), HALF=D // 2, num_warps=2,
        )  # fmt: skip
        ctx.stream, ctx.shape = stream, qkv_NHD.shape
        return q, k, v

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        stream, (N, _, D) = ctx.stream, ctx.shape
        out = dq.new_empty(ctx.shape)
        _spread_back[(N,)](
            dq.contiguous(), dk.contiguous(), dv.contiguous(), *stream.rope, stream.order_K, stream.first_N, out,
            dq.shape[1], dk.shape[1], WIDE=triton.next_power_of_2(dq.shape[1]), FEW=triton.next_power_of_2(dk.shape[1]),
            HALF=D // 2, num_warps=2,
        )  # fmt: skip
        return out, None, None


if triton is not None:

    @triton.jit
    def _turn(x, at, y, to, there, c, s, HALF: tl.constexpr):
        """Heads of x at those places, turned by the angle with that cosine and sine, to those places of y."""
        a = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        b = tl.load(x + at + HALF, mask=there, other=0.0).to(tl.float32)
        tl.store(y + to, (a * c - b * s).to(y.dtype.element_ty), mask=there)
        tl.store(y + to + HALF, (b * c + a * s).to(y.dtype.element_ty), mask=there)

    @triton.jit
    def _spread(qkv, cos, sin, source, q, k, v, N, K, H, KV, WIDE: tl.constexpr, FEW: tl.constexpr, HALF: tl.constexpr):
        n = tl.program_id(0).to(tl.int64)
        D: tl.constexpr = 2 * HALF
        i, h, g = tl.arange(0, HALF), tl.arange(0, WIDE), tl.arange(0, FEW)
        if n < N:
            at = (n * (H + 2 * KV) + h)[:, None] * D + i[None, :]
            c, s = tl.load(cos + n * HALF + i)[None, :], tl.load(sin + n * HALF + i)[None, :]
            _turn(qkv, at, q, (n * H + h)[:, None] * D + i[None, :], (h < H)[:, None], c, s, HALF)
        if n < K:
            t, some = tl.load(source + n).to(tl.int64), (g < KV)[:, None]
            at, to = (t * (H + 2 * KV) + H + g)[:, None] * D + i[None, :], (n * KV + g)[:, None] * D + i[None, :]
            c, s = tl.load(cos + t * HALF + i)[None, :], tl.load(sin + t * HALF + i)[None, :]
            _turn(qkv, at, k, to, some, c, s, HALF)
            tl.store(v + to, tl.load(qkv + at + KV * D, mask=some, other=0.0), mask=some)
            tl.store(v + to + HALF, tl.load(qkv + at + KV * D + HALF, mask=some, other=0.0), mask=some)

    @triton.jit
    def _spread_back(
        dq, dk, dv, cos, sin, order, first, out, H, KV, WIDE: tl.constexpr, FEW: tl.constexpr, HALF: tl.constexpr
    ):
        n = tl.program_id(0).to(tl.int64)
        D: tl.constexpr = 2 * HALF
        i, h, g = tl.arange(0, HALF), tl.arange(0, WIDE), tl.arange(0, FEW)
        c, s = tl.load(cos + n * HALF + i)[None, :], tl.load(sin + n * HALF + i)[None, :]
        to = (n * (H + 2 * KV) + h)[:, None] * D + i[None, :]
        _turn(dq, (n * H + h)[:, None] * D + i[None, :], out, to, (h < H)[:, None], c, -s, HALF)
        some = (g < KV)[:, None]
        ka, kb = tl.zeros((FEW, HALF), tl.float32), tl.zeros((FEW, HALF), tl.float32)
        va, vb = tl.zeros((FEW, HALF), tl.float32), tl.zeros((FEW, HALF), tl.float32)
        for j in range(tl.load(first + n), tl.load(first + n + 1)):
            copy = (tl.load(order + j).to(tl.int64) * KV + g)[:, None] * D + i[None, :]
            ka += tl.load(dk + copy, mask=some, other=0.0).to(tl.float32)
            kb += tl.load(dk + copy + HALF, mask=some, other=0.0).to(tl.float32)
            va += tl.load(dv + copy, mask=some, other=0.0).to(tl.float32)
            vb += tl.load(dv + copy + HALF, mask=some, other=0.0).to(tl.float32)
        into = (n * (H + 2 * KV) + H + g)[:, None] * D + i[None, :]
        tl.store(out + into, (ka * c + kb * s).to(out.dtype.element_ty), mask=some)
        tl.store(out + into + HALF, (kb * c - ka * s).to(out.dtype.element_ty), mask=some)
        tl.store(out + into + KV * D, va.to(out.dtype.element_ty), mask=some)
        tl.store(out + into + KV * D + HALF, vb.to(out.dtype.element_ty), mask=some)
