"""Attention of one new token a slot over the slot's pages, as Triton kernels beside the plain-torch twin that means the same.

A slot's pages hold its head (the first `head` places, shared by a group, from the start of a page) and then its own places, from
the start of the next page. Slots that share a long head form a crew: one program reads it for all of them, another each slot's
own rest, and the two are joined by their log-sum-exps. More than SPAN pages are cut into spans, joined the same way.
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
    q_SHD: Tensor,
    keys: Tensor,
    values: Tensor,
    table_SM: Tensor,
    head_S: Tensor,
    length_S: Tensor,
    crews: Crews | None = None,
) -> Tensor:
    """softmax(q K^T / sqrt(D)) V over the first length + 1 places of each slot's pages (N, H_kv, page, D)."""
    if triton is None or not q_SHD.is_cuda:
        return attend_plain(q_SHD, keys, values, table_SM, head_S, length_S)
    (S, H, D), (_, kv_heads, page, _), M = q_SHD.shape, keys.shape, table_SM.shape[1]
    group, spans = H // kv_heads, triton.cdiv(M, SPAN)
    out = torch.empty_like(q_SHD)
    parts = spans if crews is None else 2 * spans
    part = torch.empty(S, H, parts, D, device=q_SHD.device) if parts > 1 else out
    mass = torch.empty(S, H, parts, device=q_SHD.device) if parts > 1 else out
    common = length_S if crews is None else crews.common
    meta = {"D": D, "PAGE": page, "SPAN": SPAN, "EXACT": q_SHD.dtype == torch.float32}
    shape = (D**-0.5 * 1.4426950408889634, M, kv_heads, group, spans)
    tuned = TUNED[64 if D <= 64 else 128]
    if crews is not None:
        _together[(len(crews.members), kv_heads, spans)](
        q_SHD, keys, values, crews.members, crews.table, crews.common, part, mass, *shape,
        CREW=CREW, PAD=max(16, triton.next_power_of_2(group * CREW)), **meta, **TUNED_CREW,
    )  # fmt: skip
    _alone[(S, kv_heads, spans)](
        q_SHD, keys, values, table_SM, head_S, length_S, common, part, mass, out, *shape,
        PAD=max(16, triton.next_power_of_2(group)), CREWS=crews is not None, MANY=spans > 1, **meta, **tuned,
    )  # fmt: skip
    if spans > 1:
        _join[(S, H)](
            part, mass, out, head_S, length_S, common, H, spans, CREWS=crews is not None,
            D=D, SPANS=triton.next_power_of_2(parts), SPAN=SPAN, PAGE=page, num_warps=2,
        )  # fmt: skip
    return out


def attend_plain(
    q_SHD: Tensor, keys: Tensor, values: Tensor, table_SM: Tensor, head_S: Tensor, length_S: Tensor
) -> Tensor:
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
    def _together(q, k, v, members, table, common, part, mass, scale, M, KV, G, SPANS, CREW: tl.constexpr, PAD: tl.constexpr,
                  D: tl.constexpr, PAGE: tl.constexpr, SPAN: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
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
                query = tl.load(q + row[:, None] * D + d[None, :], mask=real[:, None], other=0.0)
                top, total = tl.full((PAD,), float("-inf"), tl.float32), tl.zeros((PAD,), tl.float32)
                acc = tl.zeros((PAD, D), tl.float32)
                top, total, acc = _scan(query, k, v, table + crew * M, first, last, n, 0, h, KV, scale, top, total, acc,
                                        D, PAGE, SPAN, EXACT)  # fmt: skip
                to = row * 2 * SPANS + c
                tl.store(part + to[:, None] * D + d[None, :], acc / total[:, None], mask=real[:, None])
                tl.store(mass + to, top + tl.log2(total), mask=real)

    @triton.jit
    def _alone(q, k, v, table, heads, lengths, common, part, mass, out, scale, M, KV, G, SPANS, PAD: tl.constexpr,
               CREWS: tl.constexpr, MANY: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, SPAN: tl.constexpr,
               EXACT: tl.constexpr):  # fmt: skip
        s, h, c = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
        head = tl.load(heads + s).to(tl.int32)
        own = tl.load(lengths + s).to(tl.int32) + 1 - head
        begun = 0
        if CREWS:
            begun = tl.cdiv(tl.load(common + s), PAGE)
        g, d = tl.arange(0, PAD), tl.arange(0, D)
        real = g < G
        row = s * KV * G + h * G + g
        query = tl.load(q + row[:, None] * D + d[None, :], mask=real[:, None], other=0.0)
        first = begun + c * SPAN
        last = tl.minimum(first + SPAN, tl.cdiv(head, PAGE) + tl.cdiv(own, PAGE))
        if first < last:
            if CREWS and not MANY:  # what the crew has found is where this begins
                crew = real & (begun > 0)
                top = tl.load(mass + row * 2, mask=crew, other=float("-inf"))
                total = crew.to(tl.float32)
                acc = tl.load(part + (row * 2)[:, None] * D + d[None, :], mask=crew[:, None], other=0.0)
            else:
                top, total = tl.full((PAD,), float("-inf"), tl.float32), tl.zeros((PAD,), tl.float32)
                acc = tl.zeros((PAD, D), tl.float32)
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
        pages = tl.cdiv(head, PAGE) + tl.cdiv(tl.load(lengths + s) + 1 - head, PAGE)
        c, d = tl.arange(0, SPANS), tl.arange(0, D)
        if CREWS:
            begun = tl.cdiv(tl.load(common + s), PAGE)
            there = tl.where(c < N, c * SPAN < begun, (c < 2 * N) & (begun + (c - N) * SPAN < pages))
            row = (s * H + h) * 2 * N
        else:
            there = c * SPAN < pages
            row = (s * H + h) * N
        m = tl.load(mass + row + c, mask=there, other=float("-inf"))
        w = tl.exp2(m - tl.max(m, 0))
        x = tl.load(part + (row + c)[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
        y = tl.sum(x * (w / tl.sum(w, 0))[:, None], 0)
        tl.store(out + (s * H + h) * D + d, y.to(out.dtype.element_ty))
