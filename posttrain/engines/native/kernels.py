"""The three kernels of a decode step that torch does not have, each beside a plain-torch twin that means the same.

Triton is imported only where a GPU is; the twins serve every other device and the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without it
    triton = None


# ---- attention of one new token a slot over the slot's own keys and values

ATTEND = {"BLOCK": 64, "num_warps": 4, "num_stages": 3}  # benchmarks/tune_attend.py says which is fastest


def attend(q_SHD: Tensor, keys: Tensor, values: Tensor, length_S: Tensor) -> Tensor:
    """softmax(q K^T / sqrt(D)) V over the first length + 1 places of each slot; keys and values are (S, H_kv, L, D)."""
    if triton is None or not q_SHD.is_cuda:
        return attend_plain(q_SHD, keys, values, length_S)
    S, H, D = q_SHD.shape
    kv_heads, L = keys.shape[1], keys.shape[2]
    out = torch.empty_like(q_SHD)
    group = H // kv_heads
    _attend[(S, kv_heads)](
        q_SHD, keys, values, length_S, out, D**-0.5, L, kv_heads, group,
        PAD=max(16, triton.next_power_of_2(group)), D=D, EXACT=q_SHD.dtype == torch.float32, **ATTEND,
    )  # fmt: skip
    return out


def attend_plain(q_SHD: Tensor, keys: Tensor, values: Tensor, length_S: Tensor) -> Tensor:
    seen = torch.arange(keys.shape[2], device=keys.device) <= length_S.unsqueeze(-1)
    out = F.scaled_dot_product_attention(
        q_SHD.unsqueeze(2), keys, values, attn_mask=seen[:, None, None, :], enable_gqa=q_SHD.shape[1] != keys.shape[1]
    )
    return out.squeeze(2)


# ---- what follows the product of the residual stream with q, k and v
# The weight of the norm before it is folded into the matrix; its 1 / rms is a number a row, so it is applied here, after.


@dataclass
class Turn:
    """What `place` needs besides the product: biases, the norms of queries and keys (or None), the rotary table, eps."""

    bias: Tensor | None
    norms: tuple[Tensor, Tensor] | None
    rope: tuple[Tensor, Tensor]
    eps: float


def place(qkv_SN: Tensor, x_SC: Tensor, keys: Tensor, values: Tensor, length_S: Tensor, turn: Turn) -> Tensor:
    """Scale by 1 / rms(x), rotate q and k to each slot's position, write k and v there; returns q as (S, H, D)."""
    if triton is None or not qkv_SN.is_cuda:
        return place_plain(qkv_SN, x_SC, keys, values, length_S, turn)
    S, kv_heads, L, D = keys.shape
    heads = qkv_SN.shape[1] // D - 2 * kv_heads
    q_SHD = torch.empty(S, heads, D, dtype=qkv_SN.dtype, device=qkv_SN.device)
    (cos, sin), C = turn.rope, x_SC.shape[1]
    qn, kn = turn.norms or (cos, cos)
    _place[(S, heads + 2 * kv_heads)](
        qkv_SN, x_SC, q_SHD, keys, values, length_S, cos, sin, qn, kn, qkv_SN if turn.bias is None else turn.bias,
        turn.eps, L, heads, kv_heads, C,
        WIDE=triton.next_power_of_2(C), HALF=D // 2, NORM=turn.norms is not None, BIAS=turn.bias is not None,
        num_warps=1 if C <= 1024 else 4,
    )  # fmt: skip
    return q_SHD


def place_plain(qkv_SN: Tensor, x_SC: Tensor, keys: Tensor, values: Tensor, length_S: Tensor, turn: Turn) -> Tensor:
    S, kv_heads, _, D = keys.shape
    heads = qkv_SN.shape[1] // D - 2 * kv_heads
    qkv_SN = qkv_SN.float() * inverse_rms(x_SC, turn.eps)
    if turn.bias is not None:
        qkv_SN = qkv_SN + turn.bias.float()
    q, k, v = qkv_SN.view(S, -1, D).split((heads, kv_heads, kv_heads), 1)
    if turn.norms is not None:
        q, k = (F.rms_norm(y, (D,), w.float(), turn.eps) for y, w in zip((q, k), turn.norms, strict=True))
    cos, sin = (table[length_S].unsqueeze(1) for table in turn.rope)
    rows = torch.arange(S, device=keys.device)
    keys[rows, :, length_S] = _turned(k, cos, sin).to(keys.dtype)
    values[rows, :, length_S] = v.to(values.dtype)
    return _turned(q, cos, sin).to(x_SC.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def inverse_rms(x_SC: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x_SC.float().pow(2).mean(-1, keepdim=True) + eps)


# ---- the gate of the MLP


def gate(y_SF2: Tensor, x_SC: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """silu(a) * b for [a, b] = y / rms(x) + bias; y is the product of x with the matrices of gate and up."""
    if triton is None or not y_SF2.is_cuda:
        return gate_plain(y_SF2, x_SC, bias, eps)
    (S, F2), C = y_SF2.shape, x_SC.shape[1]
    out = torch.empty(S, F2 // 2, dtype=y_SF2.dtype, device=y_SF2.device)
    _gate[(S, triton.cdiv(F2 // 2, 1024))](
        y_SF2, x_SC, out, y_SF2 if bias is None else bias, eps, F2 // 2, C,
        WIDE=triton.next_power_of_2(C), BLOCK=1024, BIAS=bias is not None, num_warps=4,
    )  # fmt: skip
    return out


def gate_plain(y_SF2: Tensor, x_SC: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    y_SF2 = y_SF2.float() * inverse_rms(x_SC, eps)
    a, b = (y_SF2 if bias is None else y_SF2 + bias.float()).chunk(2, -1)
    return (F.silu(a) * b).to(x_SC.dtype)


# ---- sampling: how much probability each block of the vocabulary holds

BLOCK = 1024


def mass(z_SV: Tensor, cold: Tensor) -> Tensor:
    """logsumexp of z * cold over blocks of the vocabulary, (S, blocks) in fp32; cold is 1 / temperature."""
    if triton is None or not z_SV.is_cuda:
        return mass_plain(z_SV, cold)
    S, V = z_SV.shape
    blocks = triton.cdiv(V, BLOCK)
    out = torch.empty(S, blocks, device=z_SV.device)
    _mass[(S, blocks)](z_SV, out, V, blocks, cold, BLOCK=BLOCK, num_warps=4)
    return out


def mass_plain(z_SV: Tensor, cold: Tensor) -> Tensor:
    z_SV = z_SV.float() * cold
    room = -z_SV.shape[-1] % BLOCK
    return torch.logsumexp(F.pad(z_SV, (0, room), value=-torch.inf).unflatten(-1, (-1, BLOCK)), -1)


if triton is not None:

    @triton.jit
    def _attend(q, k, v, lengths, out, scale, L, KV, G, PAD: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
        s, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
        n = tl.load(lengths + s) + 1
        g, d = tl.arange(0, PAD), tl.arange(0, D)
        at_q = (s * KV * G + h * G + g)[:, None] * D + d[None, :]
        query = tl.load(q + at_q, mask=(g < G)[:, None], other=0.0)
        base = (s * KV + h) * L * D
        top = tl.full((PAD,), float("-inf"), tl.float32)
        total = tl.zeros((PAD,), tl.float32)
        acc = tl.zeros((PAD, D), tl.float32)
        precision: tl.constexpr = "ieee" if EXACT else "tf32"
        for start in range(0, n, BLOCK):
            j = start + tl.arange(0, BLOCK)
            inside = j < n
            at = base + j[:, None] * D + d[None, :]
            key = tl.load(k + at, mask=inside[:, None], other=0.0)
            score = tl.dot(query, tl.trans(key), input_precision=precision) * scale
            score = tl.where(inside[None, :], score, float("-inf"))
            new = tl.maximum(top, tl.max(score, 1))
            weight = tl.exp(score - new[:, None])
            fade = tl.exp(top - new)
            value = tl.load(v + at, mask=inside[:, None], other=0.0)
            acc = acc * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision=precision)
            total = total * fade + tl.sum(weight, 1)
            top = new
        tl.store(out + at_q, (acc / total[:, None]).to(out.dtype.element_ty), mask=(g < G)[:, None])

    @triton.jit
    def _inverse_rms(x, s, C, eps, WIDE: tl.constexpr):
        i = tl.arange(0, WIDE)
        row = tl.load(x + s * C + i, mask=i < C, other=0.0).to(tl.float32)
        return tl.rsqrt(tl.sum(row * row, 0) / C + eps)

    @triton.jit
    def _place(qkv, x, q, keys, values, lengths, cos, sin, qn, kn, bias, eps, L, H, KV, C,
               WIDE: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
        s, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
        D: tl.constexpr = 2 * HALF
        at = tl.load(lengths + s)
        i = tl.arange(0, HALF)
        row = qkv + (s * (H + 2 * KV) + h) * D
        scale = _inverse_rms(x, s, C, eps, WIDE)
        a, b = tl.load(row + i).to(tl.float32) * scale, tl.load(row + HALF + i).to(tl.float32) * scale
        if BIAS:
            a += tl.load(bias + h * D + i).to(tl.float32)
            b += tl.load(bias + h * D + HALF + i).to(tl.float32)
        if h < H + KV:
            if NORM:
                w = qn if h < H else kn
                r = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / D + eps)
                a = a * r * tl.load(w + i).to(tl.float32)
                b = b * r * tl.load(w + HALF + i).to(tl.float32)
            c, t = tl.load(cos + at * HALF + i), tl.load(sin + at * HALF + i)
            a, b = a * c - b * t, b * c + a * t
        if h < H:
            to = q + (s * H + h) * D
        elif h < H + KV:
            to = keys + ((s * KV + h - H) * L + at) * D
        else:
            to = values + ((s * KV + h - H - KV) * L + at) * D
        tl.store(to + i, a.to(qkv.dtype.element_ty))
        tl.store(to + HALF + i, b.to(qkv.dtype.element_ty))

    @triton.jit
    def _gate(y, x, out, bias, eps, F, C, WIDE: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr):
        s = tl.program_id(0).to(tl.int64)
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = i < F
        scale = _inverse_rms(x, s, C, eps, WIDE)
        a = tl.load(y + s * 2 * F + i, mask=inside, other=0.0).to(tl.float32) * scale
        b = tl.load(y + s * 2 * F + F + i, mask=inside, other=0.0).to(tl.float32) * scale
        if BIAS:
            a += tl.load(bias + i, mask=inside, other=0.0).to(tl.float32)
            b += tl.load(bias + F + i, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + s * F + i, (a * tl.sigmoid(a) * b).to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _mass(z, out, V, NB, cold, BLOCK: tl.constexpr):
        s, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
        i = n * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(z + s * V + i, mask=i < V, other=float("-inf")).to(tl.float32) * tl.load(cold)
        top = tl.max(x, 0)
        tl.store(out + s * NB + n, top + tl.log(tl.sum(tl.exp(x - top), 0)))
