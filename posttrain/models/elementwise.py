"""Residual and norm, and the gate of an MLP, forward and backward in one pass over memory each on a GPU; plain torch elsewhere.

At 16k tokens these are the largest tensors of a layer: three passes over them cost as much as half of its products.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.models.kernels import serve, tl, triton


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight in the weight's type; x (the residual stream) has float32, whatever the weights have."""
    return added_normed(x, None, weight, eps)[1]


def added_normed(x: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + y, and its norm: what a layer adds to the residual stream, and what the next one reads of it."""
    if not serve(x) or weight.dtype == torch.float32:
        x = x if y is None else x + y
        return x, F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps).to(weight.dtype)
    if y is None:
        x = x.contiguous()
        return x, _Normed.apply(x, None, weight, eps)[1]
    return _Normed.apply(x.contiguous(), y.contiguous(), weight, eps)


class _Normed(torch.autograd.Function):
    """With s = x + y, r = 1 / rms(s), g = w dh: dx = dy = ds + r (g - s r^2 mean(g s)); dw = sum over rows of dh s r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor | None, Tensor]:
        ctx.set_materialize_grads(False)
        C = x.shape[-1]
        rows = x.numel() // C
        out, scale = torch.empty_like(x, dtype=weight.dtype), torch.empty(rows, device=x.device)
        total = None if y is None else torch.empty_like(x)
        _norm[(rows,)](
            x, x if y is None else y, weight, x if total is None else total, out, scale, eps, C,
            ADD=y is not None, WIDE=triton.next_power_of_2(C), num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(x if total is None else total, weight, scale)
        ctx.kind = None if y is None else y.dtype
        return total, out

    @staticmethod
    def backward(ctx: Any, ds: Tensor | None, dh: Tensor) -> tuple[Tensor, Tensor | None, Tensor, None]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        C, rows, each = x.shape[-1], len(scale), 32
        pieces = triton.cdiv(rows, each)
        dx, dw = torch.empty_like(x), torch.empty(pieces, C, device=x.device)
        dy = None if ctx.kind is None else torch.empty_like(x, dtype=ctx.kind)
        _norm_back[(pieces,)](
            x, weight, scale, dh.contiguous(), x if ds is None else ds.contiguous(), dx, dx if dy is None else dy, dw, rows, C,
            STREAM=ds is not None, ADD=dy is not None, EACH=each, WIDE=triton.next_power_of_2(C), num_warps=4,
        )  # fmt: skip
        return dx, dy, dw.sum(0).to(weight.dtype), None


def gate(y: Tensor, bias: Tensor | None = None) -> Tensor:
    """silu(a) * b for [a, b] = y + bias; y is the product with the matrices of gate and up."""
    if not serve(y):
        wide = y.float() if bias is None else y.float() + bias.float()
        a, b = wide.chunk(2, -1)
        return (F.silu(a) * b).to(y.dtype)
    rows, half = y.numel() // y.shape[-1], y.shape[-1] // 2
    out = torch.empty(*y.shape[:-1], half, dtype=y.dtype, device=y.device)
    block = min(triton.next_power_of_2(half), 1024)
    given = y if bias is None else bias
    _gate[(rows, triton.cdiv(half, block))](y, out, given, half, BLOCK=block, BIAS=bias is not None, num_warps=4)
    return out


def gated(y: Tensor) -> Tensor:
    """The same without bias, for training."""
    if not serve(y):
        a, b = y.chunk(2, -1)
        return F.silu(a) * b
    return _Gated.apply(y.contiguous())


class _Gated(torch.autograd.Function):
    """With s = sigmoid(a): z = a s b;  dz/da = b s (1 + a (1 - s));  dz/db = a s."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return gate(y)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> Tensor:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        dy, half = torch.empty_like(y), y.shape[-1] // 2
        blocks = (y.numel() // y.shape[-1], triton.cdiv(half, 1024))
        _gate_back[blocks](y, dz.contiguous(), dy, half, BLOCK=1024, num_warps=4)
        return dy


if triton is not None:

    @triton.jit
    def _norm(x, y, w, total, out, scale, eps, C, ADD: tl.constexpr, WIDE: tl.constexpr):
        n = tl.program_id(0).to(tl.int64)
        i = tl.arange(0, WIDE)
        row = tl.load(x + n * C + i, mask=i < C, other=0.0).to(tl.float32)
        if ADD:
            row += tl.load(y + n * C + i, mask=i < C, other=0.0).to(tl.float32)
            tl.store(total + n * C + i, row.to(total.dtype.element_ty), mask=i < C)
        r = tl.rsqrt(tl.sum(row * row, 0) / C + eps)
        tl.store(scale + n, r)
        h = row * r * tl.load(w + i, mask=i < C, other=0.0).to(tl.float32)
        tl.store(out + n * C + i, h.to(out.dtype.element_ty), mask=i < C)

    @triton.jit
    def _norm_back(x, w, scale, dh, ds, dx, dy, dw, N, C, STREAM: tl.constexpr, ADD: tl.constexpr, EACH: tl.constexpr,
                   WIDE: tl.constexpr):  # fmt: skip
        """EACH rows a program; their share of dw is summed here, the programs' shares by torch."""
        piece = tl.program_id(0).to(tl.int64)
        i = tl.arange(0, WIDE)
        weight = tl.load(w + i, mask=i < C, other=0.0).to(tl.float32)
        total = tl.zeros((WIDE,), tl.float32)
        for e in range(EACH):
            n = piece * EACH + e
            if n < N:
                row = tl.load(x + n * C + i, mask=i < C, other=0.0).to(tl.float32)
                up = tl.load(dh + n * C + i, mask=i < C, other=0.0).to(tl.float32)
                r = tl.load(scale + n)
                g = up * weight
                slope = r * (g - row * (r * r * tl.sum(g * row, 0) / C))
                if STREAM:
                    slope += tl.load(ds + n * C + i, mask=i < C, other=0.0).to(tl.float32)
                tl.store(dx + n * C + i, slope.to(dx.dtype.element_ty), mask=i < C)
                if ADD:
                    tl.store(dy + n * C + i, slope.to(dy.dtype.element_ty), mask=i < C)
                total += up * row * r
        tl.store(dw + piece * C + i, total, mask=i < C)

    @triton.jit
    def _gate(y, out, bias, F, BLOCK: tl.constexpr, BIAS: tl.constexpr):
        n = tl.program_id(0).to(tl.int64)
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(y + n * 2 * F + i, mask=i < F, other=0.0).to(tl.float32)
        b = tl.load(y + n * 2 * F + F + i, mask=i < F, other=0.0).to(tl.float32)
        if BIAS:
            a += tl.load(bias + i, mask=i < F, other=0.0).to(tl.float32)
            b += tl.load(bias + F + i, mask=i < F, other=0.0).to(tl.float32)
        tl.store(out + n * F + i, (a * tl.sigmoid(a) * b).to(out.dtype.element_ty), mask=i < F)

    @triton.jit
    def _gate_back(y, dz, dy, F, BLOCK: tl.constexpr):
        n = tl.program_id(0).to(tl.int64)
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(y + n * 2 * F + i, mask=i < F, other=0.0).to(tl.float32)
        b = tl.load(y + n * 2 * F + F + i, mask=i < F, other=0.0).to(tl.float32)
        g = tl.load(dz + n * F + i, mask=i < F, other=0.0).to(tl.float32)
        s = tl.sigmoid(a)
        tl.store(dy + n * 2 * F + i, (g * b * s * (1 + a * (1 - s))).to(dy.dtype.element_ty), mask=i < F)
        tl.store(dy + n * 2 * F + F + i, (g * a * s).to(dy.dtype.element_ty), mask=i < F)
