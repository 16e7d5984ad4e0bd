"""Norms, the gate of an MLP and rotary positions, forward and backward in one pass over memory each on a GPU; plain torch elsewhere.

At 16k tokens these are the largest tensors of a layer: three passes over them cost as much as half of its products.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.models.kernels import tl, triton


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight in the weight's type; x (the residual stream) has float32, whatever the weights have."""
    if triton is None or not x.is_cuda or weight.dtype == torch.float32:
        return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps).to(weight.dtype)
    return _Normed.apply(x.contiguous(), weight, eps)


class _Normed(torch.autograd.Function):
    """With r = 1 / rms(x), g = w dy: dx = r (g - x r^2 mean(g x)); dw = sum over rows of dy x r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows, C = x.numel() // x.shape[-1], x.shape[-1]
        y, scale = torch.empty_like(x, dtype=weight.dtype), torch.empty(rows, device=x.device)
        _norm[(rows,)](x, weight, y, scale, eps, C, WIDE=triton.next_power_of_2(C), num_warps=4)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        C = x.shape[-1]
        rows, each = len(scale), 32
        dx, pieces = torch.empty_like(x), triton.cdiv(len(scale), each)
        dw = torch.empty(pieces, C, device=x.device)
        _norm_back[(pieces,)](
            x, weight, scale, dy.contiguous(), dx, dw, rows, C, EACH=each, WIDE=triton.next_power_of_2(C), num_warps=4
        )
        return dx, dw.sum(0).to(weight.dtype), None


def gated(a: Tensor, b: Tensor) -> Tensor:
    """silu(a) * b."""
    if triton is None or not a.is_cuda:
        return F.silu(a) * b
    return _Gated.apply(a.contiguous(), b.contiguous())


class _Gated(torch.autograd.Function):
    """With s = sigmoid(a): y = a s b;  dy/da = b s (1 + a (1 - s));  dy/db = a s."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        y = torch.empty_like(a)
        _gate[(triton.cdiv(a.numel(), 4096),)](a, b, y, a.numel(), BLOCK=4096, num_warps=8)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        a, b = ctx.saved_tensors
        da, db = torch.empty_like(a), torch.empty_like(b)
        _gate_back[(triton.cdiv(a.numel(), 4096),)](a, b, dy.contiguous(), da, db, a.numel(), BLOCK=4096, num_warps=8)
        return da, db


def turned(x_NHD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
    """Rotary positions of packed tokens, half-split layout; cos and sin are (N, D / 2) in fp32."""
    if triton is None or not x_NHD.is_cuda:
        a, b = x_NHD.chunk(2, -1)
        c, s = cos_ND.unsqueeze(1).to(x_NHD.dtype), sin_ND.unsqueeze(1).to(x_NHD.dtype)
        return torch.cat((a * c - b * s, b * c + a * s), -1)
    return _Turned.apply(x_NHD.contiguous(), cos_ND, sin_ND)


class _Turned(torch.autograd.Function):
    """A rotation; its gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, x_NHD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
        ctx.save_for_backward(cos_ND, sin_ND)
        return _rotated(x_NHD, cos_ND, sin_ND, 1.0)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        cos_ND, sin_ND = ctx.saved_tensors
        return _rotated(dy.contiguous(), cos_ND, sin_ND, -1.0), None, None


def _rotated(x_NHD: Tensor, cos_ND: Tensor, sin_ND: Tensor, way: float) -> Tensor:
    N, H, D = x_NHD.shape
    out = torch.empty_like(x_NHD)
    wide = triton.next_power_of_2(H)
    _turn[(N,)](x_NHD, cos_ND, sin_ND, out, way, H, WIDE=wide, HALF=D // 2, num_warps=4)
    return out


if triton is not None:

    @triton.jit
    def _norm(x, w, y, scale, eps, C, WIDE: tl.constexpr):
        n = tl.program_id(0).to(tl.int64)
        i = tl.arange(0, WIDE)
        row = tl.load(x + n * C + i, mask=i < C, other=0.0).to(tl.float32)
        r = tl.rsqrt(tl.sum(row * row, 0) / C + eps)
        tl.store(scale + n, r)
        out = row * r * tl.load(w + i, mask=i < C, other=0.0).to(tl.float32)
        tl.store(y + n * C + i, out.to(y.dtype.element_ty), mask=i < C)

    @triton.jit
    def _norm_back(x, w, scale, dy, dx, dw, N, C, EACH: tl.constexpr, WIDE: tl.constexpr):
        """EACH rows a program; their share of dw is summed here, the programs' shares by torch."""
        piece = tl.program_id(0).to(tl.int64)
        i = tl.arange(0, WIDE)
        weight = tl.load(w + i, mask=i < C, other=0.0).to(tl.float32)
        total = tl.zeros((WIDE,), tl.float32)
        for e in range(EACH):
            n = piece * EACH + e
            if n < N:
                row = tl.load(x + n * C + i, mask=i < C, other=0.0).to(tl.float32)
                up = tl.load(dy + n * C + i, mask=i < C, other=0.0).to(tl.float32)
                r = tl.load(scale + n)
                g = up * weight
                slope = r * (g - row * (r * r * tl.sum(g * row, 0) / C))
                tl.store(dx + n * C + i, slope.to(dx.dtype.element_ty), mask=i < C)
                total += up * row * r
        tl.store(dw + piece * C + i, total, mask=i < C)

    @triton.jit
    def _gate(a, b, y, N, BLOCK: tl.constexpr):
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(a + i, mask=i < N, other=0.0).to(tl.float32)
        z = tl.load(b + i, mask=i < N, other=0.0).to(tl.float32)
        tl.store(y + i, (x * tl.sigmoid(x) * z).to(y.dtype.element_ty), mask=i < N)

    @triton.jit
    def _gate_back(a, b, dy, da, db, N, BLOCK: tl.constexpr):
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(a + i, mask=i < N, other=0.0).to(tl.float32)
        z = tl.load(b + i, mask=i < N, other=0.0).to(tl.float32)
        g = tl.load(dy + i, mask=i < N, other=0.0).to(tl.float32)
        s = tl.sigmoid(x)
        tl.store(da + i, (g * z * s * (1 + x * (1 - s))).to(da.dtype.element_ty), mask=i < N)
        tl.store(db + i, (g * x * s).to(db.dtype.element_ty), mask=i < N)

    @triton.jit
    def _turn(x, cos, sin, out, way, H, WIDE: tl.constexpr, HALF: tl.constexpr):
        n = tl.program_id(0).to(tl.int64)
        h, i = tl.arange(0, WIDE), tl.arange(0, HALF)
        at = (n * H + h)[:, None] * (2 * HALF) + i[None, :]
        real = (h < H)[:, None]
        a = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        b = tl.load(x + at + HALF, mask=real, other=0.0).to(tl.float32)
        c, s = tl.load(cos + n * HALF + i)[None, :], way * tl.load(sin + n * HALF + i)[None, :]
        tl.store(out + at, (a * c - b * s).to(out.dtype.element_ty), mask=real)
        tl.store(out + at + HALF, (b * c + a * s).to(out.dtype.element_ty), mask=real)
