"""Attention of one new token a slot over the slot's pages, as Triton kernels beside the plain-torch twin that means the same.

A slot's pages hold its head (the first `head` places, shared by a group, from the start of a page) and then its own places, from
the start of the next page. The new token's key and value are where the running softmax begins; they go into the slot's page on
the side, so that no other kernel is needed between the product and attention. Slots that share a long head form a crew: one program reads it for all of them, another each slot's
own rest, and the two are joined by their log-sum-exps. More than SPAN pages are cut into spans, joined the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.engines.native.products import Turn, Where, place_plain

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without it
    triton = None

SPAN = 8  # pages
CREW = 8  # slots that read common pages together
CREW_PLACES = 512  # from so many common places on; fewer come from the GPU's cache as fast
TUNED = {64: {"num_warps": 2, "num_stages": 3}, 128: {"num_warps": 2, "num_stages": 2}}  # benchmarks/tune_attend.py
TUNED_CREW = {"num_warps": 4, "num_stages": 3}


@dataclass
class Crews:
    """Who reads what together: members of each crew (-1: nobody), their common pages, and how many places each slot has there."""

    members: Tensor  # (crews, CREW)
    table: Tensor  # (crews, M)
    common: Tensor  # (S,) places of each slot that its crew reads

    @staticmethod
    def blank(count: int, pages: int, device: torch.device) -> Crews:
        members = torch.full((max(1, count // 2), CREW), -1, dtype=torch.int32, device=device)
        table = torch.zeros(len(members), pages, dtype=torch.int32, device=device)
        return Crews(members, table, torch.zeros(count, dtype=torch.int32, device=device))


def attend(
    qkv_SN: Tensor, keys: Tensor, values: Tensor, where: Where, turn: Turn, crews: Crews | None = None
) -> Tensor:  # fmt: skip
    """Turn q and k of each slot to its place, write k and v into its page, and
    softmax(q K^T / sqrt(D)) V over the first length + 1 places of each slot's pages (N, H_kv, page, D); returns (S, H, D)."""
    if triton is None or not qkv_SN.is_cuda:
        return attend_plain(place_plain(qkv_SN, keys, values, where, turn), keys, values, where)
    (S, N), (_, kv_heads, page, D) = qkv_SN.shape, keys.shape
    H = N // D - 2 * kv_heads
    group, spans = H // kv_heads, triton.cdiv(where.table.shape[1], SPAN)
    out = torch.empty(S, H, D, dtype=qkv_SN.dtype, device=qkv_SN.device)
    parts = spans if crews is None else 2 * spans
    part = torch.empty(S, H, parts, D, device=out.device) if parts > 1 else out
    mass = torch.empty(S, H, parts, device=out.device) if parts > 1 else out
    common = where.length if crews is None else crews.common
    cos, sin = turn.rope
    q_norm, k_norm = turn.norms or (cos, cos)
    turned = (qkv_SN, qkv_SN if turn.bias is None else turn.bias, cos, sin, q_norm)
    meta = {"D": D, "PAGE": page, "SPAN": SPAN, "EXACT": out.dtype == torch.float32, "NORM": turn.norms is not None, "BIAS": turn.bias is not None}  # fmt: skip
    shape = (turn.eps, D**-0.5 * 1.4426950408889634, where.table.stride(0), kv_heads, group, spans)
    if crews is not None:
        _together[(len(crews.members), kv_heads, spans)](
        *turned, keys, values, crews.members, crews.table, crews.common, where.length, part, mass, *shape,
        CREW=CREW, PAD=max(16, triton.next_power_of_2(group * CREW)), **meta, **TUNED_CREW,
    )  # fmt: skip
    _alone[(S, kv_heads, spans)](
        *turned, k_norm, keys, values, where.table, where.head, where.length, common, part, mass, out, *shape,
        PAD=max(16, triton.next_power_of_2(group)), CREWS=crews is not None, MANY=spans > 1, **meta, **TUNED[64 if D <= 64 else 128],
    )  # fmt: skip
    if spans > 1:
        _join[(S, H)](
            part, mass, out, where.head, where.length, common, H, spans, CREWS=crews is not None,
            D=D, SPANS=triton.next_power_of_2(parts), SPAN=SPAN, PAGE=page, num_warps=2,
        )  # fmt: skip
    return out


def attend_plain(q_SHD: Tensor, keys: Tensor, values: Tensor, where: Where) -> Tensor:
    table_SM, head_S, length_S = where.table, where.head, where.length
    k, v, page = gathered(keys, table_SM), gathered(values, table_SM), keys.shape[2]
    if k.device.type == "cpu" and table_SM.shape[1] == 1:  # the host may look how far the longest has come
        used = int(length_S.max()) + 1
        k, v = k[:, :, :used], v[:, :, :used]
    place_K, head_S1 = torch.arange(k.shape[2], device=k.device), head_S.unsqueeze(-1)
    before_S1 = -(-head_S1 // page) * page  # where a slot's own places begin
    seen = torch.where(place_K < before_S1, place_K < head_S1, place_K - before_S1 <= length_S.unsqueeze(-1) - head_S1)
    out = F.scaled_dot_product_attention(
        q_SHD.unsqueeze(2), k, v, attn_mask=seen[:, None, None, :], enable_gqa=q_SHD.shape[1] != k.shape[1]
    )
    return out.squeeze(2)


def gathered(pages: Tensor, table_SM: Tensor) -> Tensor:
    """The pages of each slot end to end (S, H_kv, M * page, D); a slice where page s + 1 is all that slot s has."""
    S, M = table_SM.shape
    if M == 1 and pages.device.type == "cpu":
        return pages[1 : S + 1]
    return pages[table_SM.long()].transpose(1, 2).flatten(2, 3)


if triton is not None:

    @triton.jit
    def _scan(query, k, v, table, first, last, head, own, h, KV, scale, top, total, acc, D: tl.constexpr, PAGE: tl.constexpr,
              SPAN: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
        """Running softmax in base 2 over pages first..last of a table that holds `head` places and then `own` ones.

        The page numbers of a span are read before the loop: a load whose address needs another load is not pipelined.
        """
        precision: tl.constexpr = "ieee" if EXACT else "tf32"
        d, j, which = tl.arange(0, D), tl.arange(0, PAGE), tl.arange(0, SPAN)
        inner = j[:, None] * D + d[None, :]
        heads = tl.cdiv(head, PAGE)
        pages = tl.load(table + first + which, mask=first + which < last, other=0)
        for i in range(first, last):
            page = tl.sum(tl.where(which == i - first, pages, 0), 0).to(tl.int64)
            base = (page * KV + h) * (PAGE * D)
            inside = j < tl.where(i < heads, head - i * PAGE, own - (i - heads) * PAGE)
            key = tl.load(k + base + inner, mask=inside[:, None], other=0.0)
            value = tl.load(v + base + inner, mask=inside[:, None], other=0.0)
            score = tl.dot(query, tl.trans(key), input_precision=precision) * scale
            score = tl.where(inside[None, :], score, float("-inf"))
            new = tl.maximum(top, tl.max(score, 1))
            weight = tl.exp2(score - new[:, None])
            fade = tl.exp2(top - new)
            acc = acc * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision=precision)
            total = total * fade + tl.sum(weight, 1)
            top = new
        return top, total, acc

    @triton.jit
    def _turned(x, bias, at, real, norm, cos, sin, eps, D: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr):
        """Heads (R, D) that begin at x, with their bias and norm, turned to their places: products._turned."""
        HALF: tl.constexpr = D // 2
        d = tl.arange(0, D)
        other = (d + HALF) % D
        mine = tl.load(x[:, None] + d[None, :], mask=real[:, None], other=0.0).to(tl.float32)
        pair = tl.load(x[:, None] + other[None, :], mask=real[:, None], other=0.0).to(tl.float32)
        if BIAS:
            mine += tl.load(bias[:, None] + d[None, :], mask=real[:, None], other=0.0).to(tl.float32)
            pair += tl.load(bias[:, None] + other[None, :], mask=real[:, None], other=0.0).to(tl.float32)
        if NORM:
            r = tl.rsqrt(tl.sum(mine * mine, 1) / D + eps)[:, None]
            mine = mine * r * tl.load(norm + d)[None, :].to(tl.float32)
            pair = pair * r * tl.load(norm + other)[None, :].to(tl.float32)
        angle = at[:, None] * HALF + (d % HALF)[None, :]
        c, t = tl.load(cos + angle), tl.load(sin + angle)
        return mine * c + tl.where(d < HALF, -1.0, 1.0)[None, :] * pair * t

    @triton.jit
    def _together(qkv, bias, cos, sin, qn, k, v, members, table, common, lengths, part, mass, eps, scale, M, KV, G, SPANS,
                  CREW: tl.constexpr, PAD: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, SPAN: tl.constexpr,
                  EXACT: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
        crew, h, c = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        leader = tl.load(members + crew * CREW)
        if leader >= 0:
            n = tl.load(common + leader)
            first, last = c * SPAN, tl.minimum((c + 1) * SPAN, tl.cdiv(n, PAGE))
            if first < last:
                r, d = tl.arange(0, PAD), tl.arange(0, D)
                slot = tl.load(members + crew * CREW + r // G, mask=r < CREW * G, other=-1)
                real = slot >= 0
                row = slot.to(tl.int64) * KV * G + h * G + r % G
                at = tl.load(lengths + slot, mask=real, other=0)
                x = qkv + (slot.to(tl.int64) * KV * (G + 2) + h * G + r % G) * D
                query = _turned(x, bias + (h * G + r % G) * D, at, real, qn, cos, sin, eps, D, NORM, BIAS).to(
                    k.dtype.element_ty
                )
                top, total = tl.full((PAD,), float("-inf"), tl.float32), tl.zeros((PAD,), tl.float32)
                acc = tl.zeros((PAD, D), tl.float32)
                top, total, acc = _scan(query, k, v, table + crew * M, first, last, n, 0, h, KV, scale, top, total, acc,
                                        D, PAGE, SPAN, EXACT)  # fmt: skip
                to = row * 2 * SPANS + c
                tl.store(part + to[:, None] * D + d[None, :], acc / total[:, None], mask=real[:, None])
                tl.store(mass + to, top + tl.log2(total), mask=real)

    @triton.jit
    def _alone(qkv, bias, cos, sin, qn, kn, k, v, table, heads, lengths, common, part, mass, out, eps, scale, M, KV, G, SPANS,
               PAD: tl.constexpr, CREWS: tl.constexpr, MANY: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
               SPAN: tl.constexpr, EXACT: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
        s, h, c = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
        head, at = tl.load(heads + s).to(tl.int32), tl.load(lengths + s).to(tl.int32)
        own = at - head  # places before the new one
        begun = 0
        if CREWS:
            begun = tl.cdiv(tl.load(common + s), PAGE)
        first = begun + c * SPAN
        last = tl.minimum(first + SPAN, tl.cdiv(head, PAGE) + tl.cdiv(own, PAGE))
        if (c == 0) | (first < last):
            g, d, one = tl.arange(0, PAD), tl.arange(0, D), tl.arange(0, 1)
            real = g < G
            row = s * KV * G + h * G + g
            base = s * KV * (G + 2)
            query = _turned(
                qkv + (base + h * G + g) * D, bias + (h * G + g) * D, g * 0 + at, real, qn, cos, sin, eps, D, NORM, BIAS
            )
            query = query.to(k.dtype.element_ty)
            top, total = tl.full((PAD,), float("-inf"), tl.float32), tl.zeros((PAD,), tl.float32)
            acc = tl.zeros((PAD, D), tl.float32)
            if c == 0:  # the new token: the softmax begins with it, and its page gets it
                ik, iv = KV * G + h, KV * G + KV + h
                key = _turned(
                    qkv + (base + ik + one) * D,
                    bias + (ik + one) * D,
                    one + at,
                    one == 0,
                    kn,
                    cos,
                    sin,
                    eps,
                    D,
                    NORM,
                    BIAS,
                )
                value = tl.load(qkv + (base + iv) * D + d).to(tl.float32)
                if BIAS:
                    value += tl.load(bias + iv * D + d).to(tl.float32)
                page = tl.load(table + s * M + tl.cdiv(head, PAGE) + own // PAGE).to(tl.int64)
                to = ((page * KV + h) * PAGE + own % PAGE) * D
                key, value = key.to(k.dtype.element_ty), value.to(v.dtype.element_ty)
                tl.store(k + to + one[:, None] * D + d[None, :], key)
                tl.store(v + to + d, value)
                top = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
                total = tl.full((PAD,), 1.0, tl.float32)
                acc = tl.zeros((PAD, D), tl.float32) + value.to(tl.float32)[None, :]
            if CREWS and not MANY:  # and goes on with what the crew has found
                crew = real & (begun > 0)
                theirs = tl.load(mass + row * 2, mask=crew, other=float("-inf"))
                most = tl.maximum(top, theirs)
                fade, more = tl.exp2(top - most), tl.exp2(theirs - most)
                found = tl.load(part + (row * 2)[:, None] * D + d[None, :], mask=crew[:, None], other=0.0)
                top, total, acc = most, total * fade + more, acc * fade[:, None] + found * more[:, None]
            top, total, acc = _scan(query, k, v, table + s * M, first, last, head, own, h, KV, scale, top, total, acc,
                                    D, PAGE, SPAN, EXACT)  # fmt: skip
            y = acc / total[:, None]
            if MANY:
                to = row * (2 * SPANS) + SPANS + c if CREWS else row * SPANS + c
                tl.store(part + to[:, None] * D + d[None, :], y, mask=real[:, None])
                tl.store(mass + to, top + tl.log2(total), mask=real)
            else:
                tl.store(out + row[:, None] * D + d[None, :], y.to(out.dtype.element_ty), mask=real[:, None])

    @triton.jit
    def _join(part, mass, out, heads, lengths, common, H, N, CREWS: tl.constexpr, D: tl.constexpr, SPANS: tl.constexpr,
              SPAN: tl.constexpr, PAGE: tl.constexpr):  # fmt: skip
        s, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
        head = tl.load(heads + s)
        pages = tl.cdiv(head, PAGE) + tl.cdiv(tl.load(lengths + s) - head, PAGE)
        c, d = tl.arange(0, SPANS), tl.arange(0, D)
        if CREWS:
            begun = tl.cdiv(tl.load(common + s), PAGE)
            there = tl.where(c < N, c * SPAN < begun, (c == N) | ((c < 2 * N) & (begun + (c - N) * SPAN < pages)))
            row = (s * H + h) * 2 * N
        else:
            there = (c == 0) | (c * SPAN < pages)
            row = (s * H + h) * N
        m = tl.load(mass + row + c, mask=there, other=float("-inf"))
        w = tl.exp2(m - tl.max(m, 0))
        x = tl.load(part + (row + c)[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
        y = tl.sum(x * (w / tl.sum(w, 0))[:, None], 0)
        tl.store(out + (s * H + h) * D + d, y.to(out.dtype.element_ty))
