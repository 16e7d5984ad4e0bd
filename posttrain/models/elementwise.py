"""Residual add with RMSNorm, and the SwiGLU of an MLP: on a GPU one pass over memory each, forward and backward; plain torch
elsewhere.

At 16k tokens these are the largest tensors of a layer: three passes over them cost as much as half of its products.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.models.kernels import tl, triton, use_kernels


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight in the weight's type; x (the residual stream) is float32 whatever the weights are."""
    return add_rms_norm(x, None, weight, eps)[1]


def add_rms_norm(x: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + y and its norm: the residual stream after a layer, and the input of the next one."""
    if not use_kernels(x) or weight.dtype == torch.float32:
        x = x if y is None else x + y
        return x, F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps).to(weight.dtype)
    if y is None:
        x = x.contiguous()
        return x, _AddRMSNorm.apply(x, None, weight, eps)[1]  # type: ignore[no-untyped-call]
    both: tuple[Tensor, Tensor] = _AddRMSNorm.apply(x.contiguous(), y.contiguous(), weight, eps)  # type: ignore[no-untyped-call]
    return both


class _AddRMSNorm(torch.autograd.Function):
    """With s = x + y, r = 1 / rms(s), g = w dh: dx = dy = ds + r (g - s r^2 mean(g s)); dw = sum over rows of dh s r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor | None, Tensor]:
        ctx.set_materialize_grads(False)
        C = x.shape[-1]
        rows = x.numel() // C
        out, scale = torch.empty_like(x, dtype=weight.dtype), torch.empty(rows, device=x.device)
        total = None if y is None else torch.empty_like(x)
        _rms_norm[(rows,)](
            x, x if y is None else y, weight, x if total is None else total, out, scale, eps, C,
            ADD=y is not None, WIDE=triton.next_power_of_2(C), num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(x if total is None else total, weight, scale)
        ctx.y_dtype = None if y is None else y.dtype
        return total, out

    @staticmethod
    def backward(ctx: Any, ds: Tensor | None, dh: Tensor) -> tuple[Tensor, Tensor | None, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        C, rows = x.shape[-1], len(scale)
        each = min(
            32, triton.next_power_of_2(max(4, rows // 1024))
        )  # a row waits for the one before it: enough programs for the device
        pieces = triton.cdiv(rows, each)
        dx, dw = torch.empty_like(x), torch.empty(pieces, C, device=x.device)
        dy = None if ctx.y_dtype is None else torch.empty_like(x, dtype=ctx.y_dtype)
        _rms_norm_backward[(pieces,)](
            x, weight, scale, dh.contiguous(), x if ds is None else ds.contiguous(), dx, dx if dy is None else dy, dw, rows, C,
            RESIDUAL=ds is not None, ADD=dy is not None, ROWS=each, WIDE=triton.next_power_of_2(C), num_warps=4,
        )  # fmt: skip
        return dx, dy, dw.sum(0).to(weight.dtype), None


def silu_and_mul(y: Tensor, bias: Tensor | None = None) -> Tensor:
    """silu(a) * b for [a, b] = y + bias; y is the product with the matrices of gate and up."""
    if not use_kernels(y):
        wide = y.float() if bias is None else y.float() + bias.float()
        a, b = wide.chunk(2, -1)
        return (F.silu(a) * b).to(y.dtype)
    rows, half = y.numel() // y.shape[-1], y.shape[-1] // 2
    out = torch.empty(*y.shape[:-1], half, dtype=y.dtype, device=y.device)
    block = min(triton.next_power_of_2(half), 1024)
    bias_or_y = y if bias is None else bias
    _silu_and_mul[(rows, triton.cdiv(half, block))](
        y, out, bias_or_y, half, BLOCK=block, BIAS=bias is not None, num_warps=4
    )
    return out


def swiglu(y: Tensor) -> Tensor:
    """silu(a) * b for [a, b] = y, with a gradient: for training."""
    if not use_kernels(y):
        a, b = y.chunk(2, -1)
        return F.silu(a) * b
    z: Tensor = _SwiGLU.apply(y.contiguous())  # type: ignore[no-untyped-call]
    return z


class _SwiGLU(torch.autograd.Function):
    """With s = sigmoid(a): z = a s b;  dz/da = b s (1 + a (1 - s));  dz/db = a s."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return silu_and_mul(y)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        dy, half = torch.empty_like(y), y.shape[-1] // 2
        blocks = (y.numel() // y.shape[-1], triton.cdiv(half, 1024))
        _silu_and_mul_backward[blocks](y, dz.contiguous(), dy, half, BLOCK=1024, num_warps=4)
        return dy


if triton is not None:

    @triton.jit
    def _rms_norm(x, y, w, total, out, scale, eps, C, ADD: tl.constexpr, WIDE: tl.constexpr):
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
    def _rms_norm_backward(x, w, scale, dh, ds, dx, dy, dw, N, C, RESIDUAL: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr,
                   WIDE: tl.constexpr):  # fmt: skip
        """ROWS rows per program; their share of dw is summed here, the programs' shares by torch."""
        piece = tl.program_id(0).to(tl.int64)
        i = tl.arange(0, WIDE)
        weight = tl.load(w + i, mask=i < C, other=0.0).to(tl.float32)
        total = tl.zeros((WIDE,), tl.float32)
        for e in range(ROWS):
            n = piece * ROWS + e
            if n < N:
                row = tl.load(x + n * C + i, mask=i < C, other=0.0).to(tl.float32)
                up = tl.load(dh + n * C + i, mask=i < C, other=0.0).to(tl.float32)
                r = tl.load(scale + n)
                g = up * weight
                grad = r * (g - row * (r * r * tl.sum(g * row, 0) / C))
                if RESIDUAL:
                    grad += tl.load(ds + n * C + i, mask=i < C, other=0.0).to(tl.float32)
                tl.store(dx + n * C + i, grad.to(dx.dtype.element_ty), mask=i < C)
                if ADD:
                    tl.store(dy + n * C + i, grad.to(dy.dtype.element_ty), mask=i < C)
                total += up * row * r
        tl.store(dw + piece * C + i, total, mask=i < C)

    @triton.jit
    def _silu_and_mul(y, out, bias, F, BLOCK: tl.constexpr, BIAS: tl.constexpr):
        n = tl.program_id(0).to(tl.int64)
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(y + n * 2 * F + i, mask=i < F, other=0.0).to(tl.float32)
        b = tl.load(y + n * 2 * F + F + i, mask=i < F, other=0.0).to(tl.float32)
        if BIAS:
            a += tl.load(bias + i, mask=i < F, other=0.0).to(tl.float32)
            b += tl.load(bias + F + i, mask=i < F, other=0.0).to(tl.float32)
        tl.store(out + n * F + i, (a * tl.sigmoid(a) * b).to(out.dtype.element_ty), mask=i < F)

    @triton.jit
    def _silu_and_mul_backward(y, dz, dy, F, BLOCK: tl.constexpr):
        n = tl.program_id(0).to(tl.int64)
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(y + n * 2 * F + i, mask=i < F, other=0.0).to(tl.float32)
        b = tl.load(y + n * 2 * F + F + i, mask=i < F, other=0.0).to(tl.float32)
        g = tl.load(dz + n * F + i, mask=i < F, other=0.0).to(tl.float32)
        s = tl.sigmoid(a)
        tl.store(dy + n * 2 * F + i, (g * b * s * (1 + a * (1 - s))).to(dy.dtype.element_ty), mask=i < F)
        tl.store(dy + n * 2 * F + F + i, (g * a * s).to(dy.dtype.element_ty), mask=i < F)
