"""Attention of one new token a slot over the slot's pages, as a Triton kernel beside the plain-torch twin that means the same.

A slot's pages hold its head (the first `head` places, shared by a group, from the start of a page) and then its own places, from
the start of the next page. The new token's key and value join the running softmax at its end and go into the slot's page on the
side, so that no other kernel is needed between the product and attention. One program serves a few neighbouring slots, mates: a
head that they all share is read once for all of them, their queries filling columns of the product that would else be padding.
Keys stand left of queries in that product, places by heads: its hardware tile is 16 by 8, and a group has rarely more than 8.
More than SPAN pages a mate are cut into spans, and whoever is done last with them joins them, in order, by their log-sum-exps. The
work is a list of spans, so that one long answer costs nothing to those who are short.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.inference.products import Turn, Where, place_plain
from posttrain.models.kernels import serve, tl, triton

SPAN = 8  # pages


def settings(programs: int, D: int, mates: int) -> dict[str, int]:
    """Places an iteration, warps and stages, by measurement (benchmarks/tune_attend.py): the fewer warps the less they wait for
    each other, the fewer programs the more each must do at a time."""
    if programs <= 192:
        return {"STEP": 64, "num_warps": 4, "num_stages": 3}
    if D <= 64:
        return {"STEP": 64, "num_warps": 1, "num_stages": 3}
    if mates > 1 and programs < 512:
        return {"STEP": 64, "num_warps": 4, "num_stages": 3}
    return {"STEP": 32, "num_warps": 2, "num_stages": 4 if mates == 1 else 3}


def span(slots: int, kv_heads: int) -> int:
    """Pages a span: half as many where there are few slots, so that more programs share the work."""
    return max(1, SPAN // 2) if slots * kv_heads <= 64 else SPAN


def work(pages_S: np.ndarray, each: int, mates: int) -> np.ndarray:
    """The list of spans of slots that have so many pages, at least one for each: program << 16 | span, a program's side by side."""
    counts = np.pad(pages_S, (0, -len(pages_S) % mates)).reshape(-1, mates).sum(1)
    spans = np.maximum(1, -(-counts // (each * mates)))
    programs = np.repeat(np.arange(len(spans)), spans)
    number = np.arange(len(programs)) - np.repeat(spans.cumsum() - spans, spans)
    return (programs << 16 | number).astype(np.int32)


def attend(qkv_SN: Tensor, keys: Tensor, values: Tensor, where: Where, turn: Turn, mates: int = 1) -> Tensor:
    """Turn q and k of each slot to its place, write k and v into its page, and
    softmax(q K^T / sqrt(D)) V over the first length + 1 places of each slot's pages (N, H_kv, page, D); returns (S, H, D)."""
    if not serve(qkv_SN):
        return attend_plain(place_plain(qkv_SN, keys, values, where, turn)[0], keys, values, where)
    (S, N), (_, kv_heads, page, D) = qkv_SN.shape, keys.shape
    H = N // D - 2 * kv_heads
    group, programs, each = H // kv_heads, triton.cdiv(S, mates), span(S, kv_heads)
    todo = where.work
    if todo is None:
        todo = torch.from_numpy(work(np.full(S, where.table.shape[1]), each, mates)).to(qkv_SN.device)
    many = len(todo) > programs
    out = torch.empty(S, H, D, dtype=qkv_SN.dtype, device=qkv_SN.device)
    part, mass, arrived = out, out, where.arrived
    if many:
        part, mass = (torch.empty(len(todo), kv_heads, mates * group, n, device=out.device) for n in (D, 1))
        arrived = torch.zeros(S, kv_heads, dtype=torch.int32, device=out.device) if arrived is None else arrived
    cos, sin = turn.rope
    q_norm, k_norm = turn.norms or (cos, cos)
    _attend[(len(todo), kv_heads)](
        qkv_SN, qkv_SN if turn.bias is None else turn.bias, cos, sin, q_norm, k_norm, keys, values, where.table, where.head,
        where.length, todo, part, mass, arrived if many else out, out, turn.eps, D**-0.5 * 1.4426950408889634, S, where.table.stride(0),
        kv_heads, group, MATES=mates, PAD=max(8, triton.next_power_of_2(mates * group)), MANY=many, D=D, PAGE=page,
        SPAN=each * mates, EXACT=out.dtype == torch.float32, NORM=turn.norms is not None, BIAS=turn.bias is not None,
        **settings(programs * kv_heads, D, mates),
    )  # fmt: skip
    return out


def mates(slots: int, heads: int, kv_heads: int, D: int) -> int:
    """Neighbours that one program should serve where they share a head: as many as have their queries in the 16 columns of a
    product, if enough programs are left to fill the device; else it is slower."""
    most, few = (4, 768) if D <= 64 else (2, 256)
    return most if most * heads <= 16 * kv_heads and slots * kv_heads >= most * few else 1


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
    def _agenda(table, heads, lengths, p, c, S, M, MATES: tl.constexpr, PAGE: tl.constexpr, SPAN: tl.constexpr):
        """The pages that span c of program p reads: first the head, if all mates have the same one, then each mate's own.

        Of each: its number, whose it is (0: everybody's, 1 + mate), and how many of its places count, in one integer, because
        a loop finds its page by a sum over the span: a load whose address needs another load would not be pipelined.
        """
        m, t = tl.arange(0, MATES), c * SPAN + tl.arange(0, SPAN)
        seat = p * MATES + m
        head = tl.load(heads + seat, mask=seat < S, other=0).to(tl.int32)
        own = tl.load(lengths + seat, mask=seat < S, other=0).to(tl.int32) - head
        before = tl.cdiv(head, PAGE)
        has, common = before + tl.cdiv(own, PAGE), 0
        if MATES > 1:
            page = tl.load(table + seat * M, mask=seat < S, other=0)
            other = (page != tl.sum(tl.where(m == 0, page, 0), 0)) | (head != tl.sum(tl.where(m == 0, head, 0), 0))
            differ = tl.sum((other & (has > 0)).to(tl.int32), 0)
            common = tl.where(differ > 0, 0, tl.sum(tl.where(m == 0, before, 0), 0))
        rest = tl.maximum(has - common, 0)
        begin, end = common + tl.cumsum(rest, 0) - rest, common + tl.sum(rest, 0)
        mate = tl.maximum(tl.sum((begin[None, :] <= t[:, None]).to(tl.int32), 1) - 1, 0)
        mine = mate[:, None] == m[None, :]
        at = tl.where(t < common, t, t - tl.sum(tl.where(mine, begin[None, :], 0), 1) + common)
        head, own = tl.sum(tl.where(mine, head[None, :], 0), 1), tl.sum(tl.where(mine, own[None, :], 0), 1)
        before = tl.cdiv(head, PAGE)
        count = tl.minimum(tl.where(at < before, head - at * PAGE, own - (at - before) * PAGE), PAGE)
        there = (at < M) & (p * MATES + mate < S)  # not `t < end`: a slot of its own need not wait for its length
        number = tl.load(table + (p * MATES + mate) * M + at, mask=there, other=0).to(tl.int64)
        return number * 1024 + tl.where(t < common, 0, 1 + mate) * 128 + tl.where(t < end, count, 0), end

    @triton.jit
    def _joined(part, mass, row, step, real, count, top, total, acc, D: tl.constexpr):
        """The running softmax with what others have found in places of their own: count parts of each row, a step apart."""
        d = tl.arange(0, D)
        for c in range(count):
            at = row + c * step
            theirs = tl.load(mass + at, mask=real, other=0.0, cache_modifier=".cg")
            found = tl.load(part + at[:, None] * D + d[None, :], mask=real[:, None], other=0.0, cache_modifier=".cg")
            most = tl.maximum(top, theirs)
            anchor = tl.where(most == float("-inf"), 0.0, most)
            fade, more = tl.exp2(top - anchor), tl.exp2(theirs - anchor)
            top, total, acc = most, total * fade + more, acc * fade[:, None] + found * more[:, None]
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
        c = tl.load(cos + angle, mask=real[:, None], other=0.0)  # rows that are not there cost nothing
        t = tl.load(sin + angle, mask=real[:, None], other=0.0)
        return mine * c + tl.where(d < HALF, -1.0, 1.0)[None, :] * pair * t

    @triton.jit
    def _attend(qkv, bias, cos, sin, qn, kn, k, v, table, heads, lengths, work, part, mass, arrived, out, eps, scale, S, M, KV, G,
                MATES: tl.constexpr, PAD: tl.constexpr, MANY: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
                SPAN: tl.constexpr, STEP: tl.constexpr, EXACT: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
        precision: tl.constexpr = "ieee" if EXACT else "tf32"
        p, h, c = tl.program_id(0), tl.program_id(1), tl.program_id(2)  # 0: a constant would cost registers
        if MANY:  # else every program has one span
            task = tl.load(work + p)
            p, c = tl.maximum(task, 0) >> 16, task & 65535  # -1 is span 65,535, which nobody has
        agenda, end = _agenda(table, heads, lengths, p, c, S, M, MATES, PAGE, SPAN)
        spans, last = tl.maximum(1, tl.cdiv(end, SPAN)), tl.minimum(SPAN, end - c * SPAN)
        if c < spans:
            g, d, j, which = tl.arange(0, PAD), tl.arange(0, D), tl.arange(0, STEP), tl.arange(0, SPAN)
            seat = (p * MATES + g // G).to(tl.int64)  # rows are the query heads of one mate after another
            real = (g < MATES * G) & (seat < S)
            row = seat * KV * G + h * G + g % G
            base = seat * KV * (G + 2)
            at = tl.load(lengths + seat, mask=real, other=0).to(tl.int32)
            x, b = qkv + (base + h * G + g % G) * D, bias + (h * G + g % G) * D
            query = _turned(x, b, at, real, qn, cos, sin, eps, D, NORM, BIAS).to(k.dtype.element_ty)
            top, total = tl.full((PAD,), float("-inf"), tl.float32), tl.zeros((PAD,), tl.float32)
            acc, inner = tl.zeros((D, PAD), tl.float32), j[:, None] * D + d[None, :]
            asked, turned = tl.trans(query), d[:, None] + j[None, :] * D
            for i in range(0, last * (PAGE // STEP)):  # the running softmax, in base 2
                entry = tl.sum(tl.where(which == i // (PAGE // STEP), agenda, 0), 0)
                skip = i % (PAGE // STEP) * STEP
                inside = j < (entry & 127).to(tl.int32) - skip
                page = ((entry >> 10) * KV + h) * (PAGE * D) + skip * D
                key = tl.load(k + page + inner, mask=inside[:, None], other=0.0)
                value = tl.load(v + page + turned, mask=inside[None, :], other=0.0)
                score = tl.dot(key, asked, input_precision=precision) * scale
                seen = inside[:, None]
                if MATES > 1:
                    whose = ((entry >> 7) & 7).to(tl.int32)
                    seen = seen & ((whose == 0) | (whose - 1 == g // G))[None, :]
                score = tl.where(seen, score, float("-inf"))
                new = tl.maximum(top, tl.max(score, 0))
                anchor = new
                if MATES > 1:  # a mate whose turn has not come yet has seen nothing
                    anchor = tl.where(new == float("-inf"), 0.0, new)
                weight, fade = tl.exp2(score - anchor[None, :]), tl.exp2(top - anchor)
                acc = tl.dot(value, weight.to(value.dtype), acc * fade[None, :], input_precision=precision)
                top, total = new, total * fade + tl.sum(weight, 0)
            acc = tl.trans(acc)
            if c == 0:  # and each mate's new token
                n = tl.arange(0, PAD if MATES > 1 else 1)  # for every row, or one for all
                its = (p * MATES + n // G).to(tl.int64)
                there = (n < MATES * G) & (its < S)
                at_n = tl.load(lengths + its, mask=there, other=0).to(tl.int32)
                head = tl.load(heads + its, mask=there, other=0).to(tl.int32)
                x_n, b_n = qkv + (its * KV * (G + 2) + KV * G + h) * D, bias + (KV * G + h + n * 0) * D
                key = _turned(x_n, b_n, at_n, there, kn, cos, sin, eps, D, NORM, BIAS).to(k.dtype.element_ty)
                value = tl.load((x_n + KV * D)[:, None] + d[None, :], mask=there[:, None], other=0.0).to(tl.float32)
                if BIAS:
                    value += tl.load((b_n + KV * D)[:, None] + d[None, :], mask=there[:, None], other=0.0).to(
                        tl.float32
                    )
                value = value.to(v.dtype.element_ty)
                own, writes = at_n - head, there & (n % G == 0)
                mine = tl.load(table + its * M + tl.cdiv(head, PAGE) + own // PAGE, mask=writes, other=0).to(tl.int64)
                to = (((mine * KV + h) * PAGE + own % PAGE) * D)[:, None] + d[None, :]
                tl.store(k + to, key, mask=writes[:, None])
                tl.store(v + to, value, mask=writes[:, None])
                score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
                new = tl.maximum(top, score)
                fade, weight = tl.exp2(top - new), tl.exp2(score - new)
                acc = acc * fade[:, None] + value.to(tl.float32) * weight[:, None]
                top, total = new, total * fade + weight
            others = 0
            if MANY:  # noqa: SIM102 (known when it is compiled)
                if spans > 1:
                    step = KV * MATES * G
                    parts = (tl.program_id(0) - c).to(tl.int64) * step + h * MATES * G + g
                    y = acc / tl.where(total > 0, total, 1.0)[:, None]
                    tl.store(part + (parts + c * step)[:, None] * D + d[None, :], y, mask=real[:, None])
                    tl.store(mass + parts + c * step, top + tl.log2(total), mask=real)
                    tl.debug_barrier()
                    others = spans - 1 - tl.atomic_add(arrived + p * KV + h, 1)
                    if others == 0:
                        tl.store(arrived + p * KV + h, 0)
                        top, total = tl.full((PAD,), float("-inf"), tl.float32), tl.zeros((PAD,), tl.float32)
                        acc = tl.zeros((PAD, D), tl.float32)
                        top, total, acc = _joined(part, mass, parts, step, real, spans, top, total, acc, D)
            if others == 0:
                y = (acc / total[:, None]).to(out.dtype.element_ty)
                tl.store(out + row[:, None] * D + d[None, :], y, mask=real[:, None])
