"""The operations between the matrix products of a decode step, each as one Triton kernel beside a plain-torch version that
computes the same.

The matrix products themselves are torch's: compared with Triton products that have all of this fused in, cuBLAS and a small
kernel after it are as fast for small shapes and twice as fast for large ones (docs/engine.md). The residual stream is
float32, as in training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.models.kernels import tl, triton, use_kernels


@dataclass
class QKVTransform:
    """What is applied to the product with the q, k and v matrices before attention."""

    bias: Tensor | None
    norms: tuple[Tensor, Tensor] | None  # weights of the q and k norms, where the model has them
    rope: tuple[Tensor, Tensor]  # cos and sin of every position
    eps: float  # of the norms


@dataclass
class Placement:
    """Where each token's keys and values go in the paged cache."""

    block_table: Tensor  # (tables, M) page numbers
    prefix_len: Tensor  # positions in shared pages, before the sequence's own
    cache_len: Tensor  # positions in the cache before this token: its own position
    table_row: Tensor | None = None  # each token's row of the block table; None: token s has row s
    spans_done: Tensor | None = None  # (S, H_kv) zeros: attention counts the finished spans of each slot here
    schedule: Tensor | None = None  # attention.span_schedule; None: every span of every slot


def rotate_and_store(
    qkv_SN: Tensor, keys: Tensor, values: Tensor, place: Placement, transform: QKVTransform
) -> tuple[Tensor, ...]:
    """Rotate q and k to each token's position, write k and v into its page; returns q (S, H, D), and k and v (S, H_kv, D)."""
    if not use_kernels(qkv_SN):
        return rotate_and_store_plain(qkv_SN, keys, values, place, transform)
    S, (_, kv_heads, page, D) = len(qkv_SN), keys.shape
    heads = qkv_SN.shape[1] // D - 2 * kv_heads
    out_SHD = torch.empty(S, heads + 2 * kv_heads, D, dtype=qkv_SN.dtype, device=qkv_SN.device)
    cos, sin = transform.rope
    qn, kn = transform.norms or (cos, cos)
    _rotate_and_store[(S,)](
        qkv_SN, out_SHD, keys, values, place.block_table, place.prefix_len, place.cache_len,
        place.cache_len if place.table_row is None else place.table_row, cos, sin, qn, kn, qkv_SN if transform.bias is None else transform.bias,
        transform.eps, heads, kv_heads, place.block_table.shape[1], ALL=triton.next_power_of_2(heads + 2 * kv_heads), PAGE=page, HALF=D // 2,
        TABLE_ROWS=place.table_row is not None, NORM=transform.norms is not None, BIAS=transform.bias is not None, num_warps=4,
    )  # fmt: skip
    qkv: tuple[Tensor, ...] = out_SHD.split((heads, kv_heads, kv_heads), 1)
    return qkv


def rotate_and_store_plain(
    qkv_SN: Tensor, keys: Tensor, values: Tensor, place: Placement, transform: QKVTransform
) -> tuple[Tensor, ...]:
    S, (_, kv_heads, page, D) = len(qkv_SN), keys.shape
    heads = qkv_SN.shape[1] // D - 2 * kv_heads
    dtype, qkv_SN = qkv_SN.dtype, qkv_SN.float()
    if transform.bias is not None:
        qkv_SN = qkv_SN + transform.bias.float()
    q, k, v = qkv_SN.view(S, -1, D).split((heads, kv_heads, kv_heads), 1)
    if transform.norms is not None:
        q, k = (F.rms_norm(y, (D,), w.float(), transform.eps) for y, w in zip((q, k), transform.norms, strict=True))
    cos, sin = (table[place.cache_len].unsqueeze(1) for table in transform.rope)
    own_S = place.cache_len - place.prefix_len
    table_SM = place.block_table if place.table_row is None else place.block_table[place.table_row]
    page_S = table_SM.gather(1, (-(-place.prefix_len // page) + own_S // page).unsqueeze(-1)).squeeze(-1).long()
    q, k, v = _rotated(q, cos, sin).to(dtype), _rotated(k, cos, sin).to(keys.dtype), v.to(values.dtype)
    keys[page_S, :, own_S % page], values[page_S, :, own_S % page] = k, v
    return q, k, v


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def split_k_matmul(x_SK: Tensor, weight_NK: Tensor, splits: int = 0) -> Tensor:
    """x W^T, or where its tiles are too few to fill the device, (splits, S, N) in float32: partial sums over parts of the inner
    dimension, for `add_norm` to add up. (cuBLAS does the same with a kernel of its own for the sum.)"""
    (S, K), N = x_SK.shape, len(weight_NK)
    splits = splits or (1 if S > 256 or K < 1024 or not x_SK.is_cuda else 4 if N <= 2048 else 2)
    if splits == 1 or K % (16 * splits):
        return x_SK @ weight_NK.T
    x, w = x_SK.view(S, splits, -1).transpose(0, 1), weight_NK.view(N, splits, -1).permute(1, 2, 0)
    wide = x.is_cuda and x.dtype != torch.float32
    return torch.bmm(x, w, out_dtype=torch.float32) if wide else torch.bmm(x, w).float()


def add_norm(x_SC: Tensor, y_SC: Tensor, bias: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """x <- x + y + bias, in place; returns x / rms(x) * weight in the weight's type. y may be partial sums (n, S, C);
    their sum is rounded to the weight's type, as the whole product is in training."""
    if not use_kernels(x_SC):
        if y_SC.dim() == 3:
            y_SC = y_SC.sum(0).to(weight.dtype)
        x_SC += y_SC
        if bias is not None:
            x_SC += bias
        return F.rms_norm(x_SC, (x_SC.shape[-1],), weight.float(), eps).to(weight.dtype)
    S, C = x_SC.shape
    out = torch.empty(S, C, dtype=weight.dtype, device=x_SC.device)
    _add_norm[(S,)](
        x_SC, y_SC, weight if bias is None else bias, weight, out, eps, C,
        WIDE=triton.next_power_of_2(C), SPLITS=len(y_SC) if y_SC.dim() == 3 else 0, BIAS=bias is not None, num_warps=8,
    )  # fmt: skip
    return out


def embed_norm(token_S: Tensor, table_VC: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, the tokens' rows of the table in float32, and x / rms(x) * weight in the weight's type."""
    if not use_kernels(table_VC):
        x_SC = table_VC[token_S].float()
        return x_SC, F.rms_norm(x_SC, (x_SC.shape[-1],), weight.float(), eps).to(weight.dtype)
    S, C = len(token_S), table_VC.shape[1]
    x_SC = torch.empty(S, C, device=table_VC.device)
    out = torch.empty(S, C, dtype=weight.dtype, device=x_SC.device)
    _embed_norm[(S,)](token_S, table_VC, weight, x_SC, out, eps, C, WIDE=triton.next_power_of_2(C), num_warps=4)
    return x_SC, out


if triton is not None:

    @triton.jit
    def _embed_norm(token, table, w, x, out, eps, C, WIDE: tl.constexpr):
        s = tl.program_id(0).to(tl.int64)
        i = tl.arange(0, WIDE)
        row = tl.load(table + tl.load(token + s) * C + i, mask=i < C, other=0.0).to(tl.float32)
        tl.store(x + s * C + i, row, mask=i < C)
        r = tl.rsqrt(tl.sum(row * row, 0) / C + eps)
        weight = tl.load(w + i, mask=i < C, other=0.0).to(tl.float32)
        tl.store(out + s * C + i, (row * r * weight).to(out.dtype.element_ty), mask=i < C)

    @triton.jit
    def _add_norm(x, y, bias, w, out, eps, C, WIDE: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr):
        s = tl.program_id(0).to(tl.int64)
        i = tl.arange(0, WIDE)
        weight = tl.load(w + i, mask=i < C, other=0.0).to(tl.float32)
        row = tl.load(x + s * C + i, mask=i < C, other=0.0)
        if SPLITS:
            y_row = tl.zeros((WIDE,), tl.float32)
            for split in tl.static_range(SPLITS):
                y_row += tl.load(y + (split * tl.num_programs(0) + s) * C + i, mask=i < C, other=0.0)
            row += y_row.to(out.dtype.element_ty).to(tl.float32)
        else:
            row += tl.load(y + s * C + i, mask=i < C, other=0.0).to(tl.float32)
        if BIAS:
            row += tl.load(bias + i, mask=i < C, other=0.0).to(tl.float32)
        tl.store(x + s * C + i, row, mask=i < C)
        r = tl.rsqrt(tl.sum(row * row, 0) / C + eps)
        tl.store(out + s * C + i, (row * r * weight).to(out.dtype.element_ty), mask=i < C)

    @triton.jit
    def _rotate_and_store(qkv, out, keys, values, table, heads, lengths, table_rows, cos, sin, qn, kn, bias, eps, H, KV, M,
               ALL: tl.constexpr, PAGE: tl.constexpr, HALF: tl.constexpr, TABLE_ROWS: tl.constexpr,
               NORM: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
        D: tl.constexpr = 2 * HALF
        s = tl.program_id(0).to(tl.int64)
        h, i = tl.arange(0, ALL), tl.arange(0, HALF)
        real = (h < H + 2 * KV)[:, None]
        from_ = h[:, None] * D + i[None, :]
        at, head = tl.load(lengths + s), tl.load(heads + s)
        own = at - head
        table_row = s
        if TABLE_ROWS:
            table_row = tl.load(table_rows + s)
        page = tl.load(table + table_row * M + tl.cdiv(head, PAGE) + own // PAGE).to(tl.int64)
        row = qkv + s * (H + 2 * KV) * D
        a = tl.load(row + from_, mask=real, other=0.0).to(tl.float32)
        b = tl.load(row + from_ + HALF, mask=real, other=0.0).to(tl.float32)
        if BIAS:
            a += tl.load(bias + from_, mask=real, other=0.0).to(tl.float32)
            b += tl.load(bias + from_ + HALF, mask=real, other=0.0).to(tl.float32)
        rotates = (h < H + KV)[:, None]
        if NORM:
            r = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / D + eps)[:, None]
            queries = (h < H)[:, None]
            wa = tl.where(queries, tl.load(qn + i)[None, :], tl.load(kn + i)[None, :]).to(tl.float32)
            wb = tl.where(queries, tl.load(qn + HALF + i)[None, :], tl.load(kn + HALF + i)[None, :]).to(tl.float32)
            a, b = tl.where(rotates, a * r * wa, a), tl.where(rotates, b * r * wb, b)
        c, t = tl.load(cos + at * HALF + i)[None, :], tl.load(sin + at * HALF + i)[None, :]
        a, b = tl.where(rotates, a * c - b * t, a), tl.where(rotates, b * c + a * t, b)
        a, b = a.to(out.dtype.element_ty), b.to(out.dtype.element_ty)
        tl.store(out + s * (H + 2 * KV) * D + from_, a, mask=real)
        tl.store(out + s * (H + 2 * KV) * D + from_ + HALF, b, mask=real)
        to = (((page * KV + (h - H) % KV) * PAGE + own % PAGE) * D)[:, None] + i[None, :]
        is_k, is_v = ((h >= H) & (h < H + KV))[:, None], ((h >= H + KV) & (h < H + 2 * KV))[:, None]
        tl.store(keys + to, a, mask=is_k)
        tl.store(keys + to + HALF, b, mask=is_k)
        tl.store(values + to, a, mask=is_v)
        tl.store(values + to + HALF, b, mask=is_v)
