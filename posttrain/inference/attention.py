"""Paged decode attention: one new token per slot over the slot's pages, as a Triton kernel beside a plain-torch version.

A slot's pages hold its prefix (the first `prefix_len` positions, shared by a group, from the start of a page) and then its own
positions, from the start of the next page. The new token's key and value enter the running softmax at its end and are written
into the slot's page by the same kernel, so that no other kernel is needed between the product and attention. One program
serves a few neighbouring slots (slots_per_program): a prefix that they all share is read once for all of them, and their
queries fill columns of the product that would otherwise be padding. Keys stand left of queries in that product, positions by
heads: its hardware tile is 16 by 8, and a group of query heads rarely has more than 8. More than SPAN pages per slot are split
into spans (split-KV, as in flash decoding); the program that finishes last merges them, in order, by their log-sum-exps. The
schedule is a list of spans, so that one long sequence costs short ones nothing.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from posttrain.inference.products import Placement, QKVTransform, rotate_and_store_plain
from posttrain.models.kernels import tl, triton, use_kernels

SPAN = 8  # pages per span


def heads_fit(D: int) -> bool:
    """Whether the kernel takes heads of this size: its tiles are powers of two, and a product needs 16."""
    return D >= 16 and not D & (D - 1)


def launch_config(programs: int, D: int, slots_per_program: int) -> dict[str, int]:
    """Positions per iteration, warps and stages, by measurement (benchmarks/tune_attend.py): fewer warps wait less for each other,
    fewer programs must each do more at a time."""
    if programs <= 192:
        return {"STEP": 64, "num_warps": 4, "num_stages": 3}
    if D <= 64:
        return {"STEP": 64, "num_warps": 1, "num_stages": 3}
    if slots_per_program > 1 and programs < 512:
        return {"STEP": 64, "num_warps": 4, "num_stages": 3}
    return {"STEP": 32, "num_warps": 2, "num_stages": 4 if slots_per_program == 1 else 3}


def pages_per_span(slots: int, kv_heads: int) -> int:
    """Half as many where there are few slots, so that more programs share the work."""
    return max(1, SPAN // 2) if slots * kv_heads <= 64 else SPAN


def span_schedule(pages_S: NDArray[np.integer], each: int, slots_per_program: int) -> NDArray[np.int32]:
    """The spans of slots with so many pages, `each` per span and at least one span per program: program << 16 | span, the spans of
    a program next to each other."""
    counts = np.pad(pages_S, (0, -len(pages_S) % slots_per_program)).reshape(-1, slots_per_program).sum(1)
    spans = np.maximum(1, -(-counts // (each * slots_per_program)))
    programs = np.repeat(np.arange(len(spans)), spans)
    number = np.arange(len(programs)) - np.repeat(spans.cumsum() - spans, spans)
    schedule: NDArray[np.int32] = (programs << 16 | number).astype(np.int32)
    return schedule


def attend(
    qkv_SN: Tensor, keys: Tensor, values: Tensor, place: Placement, transform: QKVTransform, slots_per_program: int = 1
) -> Tensor:
    """Rotate q and k of each slot to its position, write k and v into its page, and compute
    softmax(q K^T / sqrt(D)) V over the first cache_len + 1 positions of its pages (N, H_kv, page, D); returns (S, H, D)."""
    if not use_kernels(qkv_SN):
        return attend_plain(rotate_and_store_plain(qkv_SN, keys, values, place, transform)[0], keys, values, place)
    (S, N), (_, kv_heads, page, D) = qkv_SN.shape, keys.shape
    H = N // D - 2 * kv_heads
    group, programs, each = H // kv_heads, triton.cdiv(S, slots_per_program), pages_per_span(S, kv_heads)
    schedule = place.schedule
    if schedule is None:
        every = span_schedule(np.full(S, place.block_table.shape[1]), each, slots_per_program)
        schedule = torch.from_numpy(every).to(qkv_SN.device)
    many = len(schedule) > programs
    out = torch.empty(S, H, D, dtype=qkv_SN.dtype, device=qkv_SN.device)
    part, logsumexp, spans_done = out, out, place.spans_done
    if many:
        part, logsumexp = (
            torch.empty(len(schedule), kv_heads, slots_per_program * group, n, device=out.device) for n in (D, 1)
        )
        spans_done = (
            torch.zeros(S, kv_heads, dtype=torch.int32, device=out.device) if spans_done is None else spans_done
        )
    cos, sin = transform.rope
    q_norm, k_norm = transform.norms or (cos, cos)
    _attend[(len(schedule), kv_heads)](
        qkv_SN, qkv_SN if transform.bias is None else transform.bias, cos, sin, q_norm, k_norm, keys, values, place.block_table, place.prefix_len,
        place.cache_len, schedule, part, logsumexp, spans_done if many else out, out, transform.eps, D**-0.5 * 1.4426950408889634, S, place.block_table.stride(0),
        kv_heads, group, PER_PROGRAM=slots_per_program, PAD=max(8, triton.next_power_of_2(slots_per_program * group)), MANY=many, D=D, PAGE=page,
        SPAN=each * slots_per_program, EXACT=out.dtype == torch.float32, NORM=transform.norms is not None, BIAS=transform.bias is not None,
        **launch_config(programs * kv_heads, D, slots_per_program),
    )  # fmt: skip
    return out


def best_slots_per_program(slots: int, heads: int, kv_heads: int, D: int) -> int:
    """Neighbours that one program should serve where they share a prefix: as many as have their queries in the 16 columns of a
    product, if enough programs are left to fill the device; with fewer programs it would be slower."""
    most, few = (4, 768) if D <= 64 else (2, 256)
    return most if most * heads <= 16 * kv_heads and slots * kv_heads >= most * few else 1


def attend_plain(q_SHD: Tensor, keys: Tensor, values: Tensor, place: Placement) -> Tensor:
    table_SM, prefix_S, length_S = place.block_table, place.prefix_len, place.cache_len
    k, v, page = gather_pages(keys, table_SM), gather_pages(values, table_SM), keys.shape[2]
    if k.device.type == "cpu" and table_SM.shape[1] == 1:  # on a CPU it costs nothing to read the longest length
        used = int(length_S.max()) + 1
        k, v = k[:, :, :used], v[:, :, :used]
    position_K, prefix_S1 = torch.arange(k.shape[2], device=k.device), prefix_S.unsqueeze(-1)
    own_start_S1 = -(-prefix_S1 // page) * page  # where a slot's own positions begin
    seen = torch.where(
        position_K < own_start_S1,
        position_K < prefix_S1,
        position_K - own_start_S1 <= length_S.unsqueeze(-1) - prefix_S1,
    )
    out = F.scaled_dot_product_attention(
        q_SHD.unsqueeze(2), k, v, attn_mask=seen[:, None, None, :], enable_gqa=q_SHD.shape[1] != k.shape[1]
    )
    return out.squeeze(2)


def gather_pages(pages: Tensor, table_SM: Tensor) -> Tensor:
    """The pages of each slot end to end (S, H_kv, M * page, D); a slice where page s + 1 is all that slot s has."""
    S, M = table_SM.shape
    if M == 1 and pages.device.type == "cpu":
        return pages[1 : S + 1]
    return pages[table_SM.long()].transpose(1, 2).flatten(2, 3)


if triton is not None:

    @triton.jit
    def _page_list(
        table, prefix_lens, cache_lens, p, c, S, M, PER_PROGRAM: tl.constexpr, PAGE: tl.constexpr, SPAN: tl.constexpr
    ):
        """The pages that span c of program p reads: first the prefix, if all its slots have the same one, then each slot's own.

        Of each: its number, which slot it belongs to (0: all of them, 1 + member), and how many of its positions count, in one
        integer, because a loop finds its page by a sum over the span: a load whose address needs another load would not be
        pipelined.
        """
        m, t = tl.arange(0, PER_PROGRAM), c * SPAN + tl.arange(0, SPAN)
        slot = p * PER_PROGRAM + m
        prefix = tl.load(prefix_lens + slot, mask=slot < S, other=0).to(tl.int32)
        own = tl.load(cache_lens + slot, mask=slot < S, other=0).to(tl.int32) - prefix
        before = tl.cdiv(prefix, PAGE)
        has, common = before + tl.cdiv(own, PAGE), 0
        if PER_PROGRAM > 1:
            page = tl.load(table + slot * M, mask=slot < S, other=0)
            other = (page != tl.sum(tl.where(m == 0, page, 0), 0)) | (prefix != tl.sum(tl.where(m == 0, prefix, 0), 0))
            differ = tl.sum((other & (has > 0)).to(tl.int32), 0)
            common = tl.where(differ > 0, 0, tl.sum(tl.where(m == 0, before, 0), 0))
        rest = tl.maximum(has - common, 0)
        begin, end = common + tl.cumsum(rest, 0) - rest, common + tl.sum(rest, 0)
        member = tl.maximum(tl.sum((begin[None, :] <= t[:, None]).to(tl.int32), 1) - 1, 0)
        mine = member[:, None] == m[None, :]
        at = tl.where(t < common, t, t - tl.sum(tl.where(mine, begin[None, :], 0), 1) + common)
        prefix, own = tl.sum(tl.where(mine, prefix[None, :], 0), 1), tl.sum(tl.where(mine, own[None, :], 0), 1)
        before = tl.cdiv(prefix, PAGE)
        count = tl.minimum(tl.where(at < before, prefix - at * PAGE, own - (at - before) * PAGE), PAGE)
        there = (at < M) & (p * PER_PROGRAM + member < S)  # not `t < end`: a lone slot need not wait for its length
        number = tl.load(table + (p * PER_PROGRAM + member) * M + at, mask=there, other=0).to(tl.int64)
        return number * 1024 + tl.where(t < common, 0, 1 + member) * 128 + tl.where(t < end, count, 0), end

    @triton.jit
    def _merge_spans(part, logsumexp, row, step, real, count, top, total, acc, D: tl.constexpr):
        """Merge the results of `count` spans of each row, `step` apart, into the running softmax."""
        d = tl.arange(0, D)
        for c in range(count):
            at = row + c * step
            their_logsumexp = tl.load(logsumexp + at, mask=real, other=0.0, cache_modifier=".cg")
            found = tl.load(part + at[:, None] * D + d[None, :], mask=real[:, None], other=0.0, cache_modifier=".cg")
            most = tl.maximum(top, their_logsumexp)
            anchor = tl.where(most == float("-inf"), 0.0, most)
            rescale, more = tl.exp2(top - anchor), tl.exp2(their_logsumexp - anchor)
            top, total, acc = most, total * rescale + more, acc * rescale[:, None] + found * more[:, None]
        return top, total, acc

    @triton.jit
    def _rotated(x, bias, at, real, norm, cos, sin, eps, D: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr):
        """Heads (R, D) that begin at x, with bias and norm, rotated to their positions: products._rotated."""
        HALF: tl.constexpr = D // 2
        d = tl.arange(0, D)
        other = (d + HALF) % D
        mine = tl.load(x[:, None] + d[None, :], mask=real[:, None], other=0.0).to(tl.float32)
        other_half = tl.load(x[:, None] + other[None, :], mask=real[:, None], other=0.0).to(tl.float32)
        if BIAS:
            mine += tl.load(bias[:, None] + d[None, :], mask=real[:, None], other=0.0).to(tl.float32)
            other_half += tl.load(bias[:, None] + other[None, :], mask=real[:, None], other=0.0).to(tl.float32)
        if NORM:
            r = tl.rsqrt(tl.sum(mine * mine, 1) / D + eps)[:, None]
            mine = mine * r * tl.load(norm + d)[None, :].to(tl.float32)
            other_half = other_half * r * tl.load(norm + other)[None, :].to(tl.float32)
        angle = at[:, None] * HALF + (d % HALF)[None, :]
        c = tl.load(cos + angle, mask=real[:, None], other=0.0)  # padding rows load nothing
        t = tl.load(sin + angle, mask=real[:, None], other=0.0)
        return mine * c + tl.where(d < HALF, -1.0, 1.0)[None, :] * other_half * t

    @triton.jit
    def _attend(qkv, bias, cos, sin, qn, kn, k, v, table, prefix_lens, cache_lens, schedule, part, logsumexp, spans_done, out, eps, scale, S, M, KV, G,
                PER_PROGRAM: tl.constexpr, PAD: tl.constexpr, MANY: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
                SPAN: tl.constexpr, STEP: tl.constexpr, EXACT: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
        precision: tl.constexpr = "ieee" if EXACT else "tf32"
        p, h, c = tl.program_id(0), tl.program_id(1), tl.program_id(2)  # 0: a constant would cost registers
        if MANY:  # otherwise every program has one span
            task = tl.load(schedule + p)
            p, c = tl.maximum(task, 0) >> 16, task & 65535  # -1 is span 65,535, which does not exist
        page_list, end = _page_list(table, prefix_lens, cache_lens, p, c, S, M, PER_PROGRAM, PAGE, SPAN)
        spans, last = tl.maximum(1, tl.cdiv(end, SPAN)), tl.minimum(SPAN, end - c * SPAN)
        if c < spans:
            g, d, j, index = tl.arange(0, PAD), tl.arange(0, D), tl.arange(0, STEP), tl.arange(0, SPAN)
            slot = (p * PER_PROGRAM + g // G).to(tl.int64)  # rows are the query heads of one slot after another
            real = (g < PER_PROGRAM * G) & (slot < S)
            row = slot * KV * G + h * G + g % G
            base = slot * KV * (G + 2)
            at = tl.load(cache_lens + slot, mask=real, other=0).to(tl.int32)
            x, b = qkv + (base + h * G + g % G) * D, bias + (h * G + g % G) * D
            query = _rotated(x, b, at, real, qn, cos, sin, eps, D, NORM, BIAS).to(k.dtype.element_ty)
            top, total = tl.full((PAD,), float("-inf"), tl.float32), tl.zeros((PAD,), tl.float32)
            acc, key_offset = tl.zeros((D, PAD), tl.float32), j[:, None] * D + d[None, :]
            query_T, value_offset = tl.trans(query), d[:, None] + j[None, :] * D
            for i in range(0, last * (PAGE // STEP)):  # the running softmax, in base 2
                entry = tl.sum(tl.where(index == i // (PAGE // STEP), page_list, 0), 0)
                skip = i % (PAGE // STEP) * STEP
                inside = j < (entry & 127).to(tl.int32) - skip
                page = ((entry >> 10) * KV + h) * (PAGE * D) + skip * D
                key = tl.load(k + page + key_offset, mask=inside[:, None], other=0.0)
                value = tl.load(v + page + value_offset, mask=inside[None, :], other=0.0)
                score = tl.dot(key, query_T, input_precision=precision) * scale
                seen = inside[:, None]
                if PER_PROGRAM > 1:
                    whose = ((entry >> 7) & 7).to(tl.int32)
                    seen = seen & ((whose == 0) | (whose - 1 == g // G))[None, :]
                score = tl.where(seen, score, float("-inf"))
                new = tl.maximum(top, tl.max(score, 0))
                anchor = new
                if PER_PROGRAM > 1:  # a slot whose pages come later has seen nothing yet
                    anchor = tl.where(new == float("-inf"), 0.0, new)
                weight, rescale = tl.exp2(score - anchor[None, :]), tl.exp2(top - anchor)
                acc = tl.dot(value, weight.to(value.dtype), acc * rescale[None, :], input_precision=precision)
                top, total = new, total * rescale + tl.sum(weight, 0)
            acc = tl.trans(acc)
            if c == 0:  # and each slot's new token
                n = tl.arange(0, PAD if PER_PROGRAM > 1 else 1)  # for each row, or one for all
                its = (p * PER_PROGRAM + n // G).to(tl.int64)
                there = (n < PER_PROGRAM * G) & (its < S)
                at_n = tl.load(cache_lens + its, mask=there, other=0).to(tl.int32)
                prefix = tl.load(prefix_lens + its, mask=there, other=0).to(tl.int32)
                x_n, b_n = qkv + (its * KV * (G + 2) + KV * G + h) * D, bias + (KV * G + h + n * 0) * D
                key = _rotated(x_n, b_n, at_n, there, kn, cos, sin, eps, D, NORM, BIAS).to(k.dtype.element_ty)
                value = tl.load((x_n + KV * D)[:, None] + d[None, :], mask=there[:, None], other=0.0).to(tl.float32)
                if BIAS:
                    value += tl.load((b_n + KV * D)[:, None] + d[None, :], mask=there[:, None], other=0.0).to(
                        tl.float32
                    )
                value = value.to(v.dtype.element_ty)
                own, writes = at_n - prefix, there & (n % G == 0)
                mine = tl.load(table + its * M + tl.cdiv(prefix, PAGE) + own // PAGE, mask=writes, other=0).to(tl.int64)
                to = (((mine * KV + h) * PAGE + own % PAGE) * D)[:, None] + d[None, :]
                tl.store(k + to, key, mask=writes[:, None])
                tl.store(v + to, value, mask=writes[:, None])
                score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
                new = tl.maximum(top, score)
                rescale, weight = tl.exp2(top - new), tl.exp2(score - new)
                acc = acc * rescale[:, None] + value.to(tl.float32) * weight[:, None]
                top, total = new, total * rescale + weight
            others = 0
            if MANY:  # noqa: SIM102 (known when it is compiled)
                if spans > 1:
                    step = KV * PER_PROGRAM * G
                    parts = (tl.program_id(0) - c).to(tl.int64) * step + h * PER_PROGRAM * G + g
                    y = acc / tl.where(total > 0, total, 1.0)[:, None]
                    tl.store(part + (parts + c * step)[:, None] * D + d[None, :], y, mask=real[:, None])
                    tl.store(logsumexp + parts + c * step, top + tl.log2(total), mask=real)
                    tl.debug_barrier()
                    others = spans - 1 - tl.atomic_add(spans_done + p * KV + h, 1)
                    if others == 0:
                        tl.store(spans_done + p * KV + h, 0)
                        top, total = tl.full((PAD,), float("-inf"), tl.float32), tl.zeros((PAD,), tl.float32)
                        acc = tl.zeros((PAD, D), tl.float32)
                        top, total, acc = _merge_spans(part, logsumexp, parts, step, real, spans, top, total, acc, D)
            if others == 0:
                y = (acc / total[:, None]).to(out.dtype.element_ty)
                tl.store(out + row[:, None] * D + d[None, :], y, mask=real[:, None])
