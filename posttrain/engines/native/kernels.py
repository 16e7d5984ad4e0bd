"""The three kernels of a decode step that torch does not have, each beside a plain-torch twin that means the same.

Triton is imported only where a GPU is; the twins serve every other device and the tests.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without it
    triton = None


# ---- attention of one new token a slot over the slot's own keys and values


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
        PAD=max(16, triton.next_power_of_2(group)), D=D, BLOCK=64, EXACT=q_SHD.dtype == torch.float32, num_warps=4,
    )  # fmt: skip
    return out


def attend_plain(q_SHD: Tensor, keys: Tensor, values: Tensor, length_S: Tensor) -> Tensor:
    seen = torch.arange(keys.shape[2], device=keys.device) <= length_S.unsqueeze(-1)
    out = F.scaled_dot_product_attention(
        q_SHD.unsqueeze(2), keys, values, attn_mask=seen[:, None, None, :], enable_gqa=q_SHD.shape[1] != keys.shape[1]
    )
    return out.squeeze(2)


# ---- rotary positions (and the norm of queries and keys where a model has one), keys and values into their slots


def place(
    qkv_SN: Tensor, keys: Tensor, values: Tensor, length_S: Tensor, rope: tuple[Tensor, Tensor], norms: Any, eps: float
) -> Tensor:
    """Rotate q and k to each slot's position, write k and v there; returns q as (S, H, D)."""
    S, kv_heads, L, D = keys.shape
    heads = qkv_SN.shape[1] // D - 2 * kv_heads
    if triton is None or not qkv_SN.is_cuda:
        return place_plain(qkv_SN, keys, values, length_S, rope, norms, eps)
    q_SHD = torch.empty(S, heads, D, dtype=qkv_SN.dtype, device=qkv_SN.device)
    cos, sin = rope
    qn, kn = norms or (cos, cos)
    _place[(S, heads + 2 * kv_heads)](
        qkv_SN, q_SHD, keys, values, length_S, cos, sin, qn, kn, eps, L, heads, kv_heads,
        HALF=D // 2, NORM=norms is not None, num_warps=1,
    )  # fmt: skip
    return q_SHD


def place_plain(
    qkv_SN: Tensor, keys: Tensor, values: Tensor, length_S: Tensor, rope: tuple[Tensor, Tensor], norms: Any, eps: float
) -> Tensor:
    S, kv_heads, _, D = keys.shape
    heads = qkv_SN.shape[1] // D - 2 * kv_heads
    q, k, v = qkv_SN.view(S, -1, D).split((heads, kv_heads, kv_heads), 1)
    if norms is not None:
        q, k = F.rms_norm(q, (D,), norms[0], eps), F.rms_norm(k, (D,), norms[1], eps)
    cos, sin = (x[length_S].unsqueeze(1) for x in rope)
    rows = torch.arange(S, device=keys.device)
    keys[rows, :, length_S] = _turn(k, cos, sin).to(keys.dtype)
    values[rows, :, length_S] = v
    return _turn(q, cos, sin).to(qkv_SN.dtype)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


# ---- the gate of the MLP


def gate(x_SF2: Tensor) -> Tensor:
    """silu(a) * b for x = [a, b]."""
    if triton is None or not x_SF2.is_cuda:
        return gate_plain(x_SF2)
    S, F2 = x_SF2.shape
    out = torch.empty(S, F2 // 2, dtype=x_SF2.dtype, device=x_SF2.device)
    _gate[(S, triton.cdiv(F2 // 2, 1024))](x_SF2, out, F2 // 2, BLOCK=1024, num_warps=4)
    return out


def gate_plain(x_SF2: Tensor) -> Tensor:
    a, b = x_SF2.chunk(2, -1)
    return F.silu(a) * b


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
    def _place(qkv, q, keys, values, lengths, cos, sin, qn, kn, eps, L, H, KV, HALF: tl.constexpr, NORM: tl.constexpr):  # fmt: skip
        s, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
        D: tl.constexpr = 2 * HALF
        at = tl.load(lengths + s)
        i = tl.arange(0, HALF)
        row = qkv + (s * (H + 2 * KV) + h) * D
        a, b = tl.load(row + i).to(tl.float32), tl.load(row + HALF + i).to(tl.float32)
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
    def _gate(x, out, F, BLOCK: tl.constexpr):
        s = tl.program_id(0).to(tl.int64)
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = i < F
        a = tl.load(x + s * 2 * F + i, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(x + s * 2 * F + F + i, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + s * F + i, (a * tl.sigmoid(a) * b).to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _mass(z, out, V, NB, cold, BLOCK: tl.constexpr):
        s, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
        i = n * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(z + s * V + i, mask=i < V, other=float("-inf")).to(tl.float32) * tl.load(cold)
        top = tl.max(x, 0)
        tl.store(out + s * NB + n, top + tl.log(tl.sum(tl.exp(x - top), 0)))
