"""From logits to the next state of every slot in two kernels: how much probability each block of the vocabulary holds, then
the token by inverse CDF (first the block, then the token of it), its log-probability, and the slot's books.

The distribution is that of `core.rng.pick`, which the plain-torch twin calls; the kernels never write a (S, V) tensor of
probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.models.kernels import serve, tl, triton

BLOCK = 1024


@dataclass
class Books:
    """What is known of every slot, on the device. Views of the first n slots are books too."""

    token: Tensor  # the last token, to be read next
    head: Tensor  # places that it shares with its group, before its own
    filled: Tensor  # places in use
    made: Tensor  # tokens of the answer so far
    limit: Tensor  # tokens the answer may have
    key: Tensor  # random identity
    top_k: Tensor
    alive: Tensor
    stopped: Tensor  # ended by a stop token
    raw: Tensor  # log-probabilities at temperature 1
    cold: Tensor  # 1 / temperature
    top_p: Tensor
    min_p: Tensor
    tokens: Tensor  # (S, T) the answers
    logp: Tensor  # (S, T) and their log-probabilities

    @staticmethod
    def blank(count: int, width: int, device: torch.device) -> Books:
        whole = [torch.zeros(count, dtype=torch.long, device=device) for _ in range(7)]
        flags = [torch.zeros(count, dtype=torch.bool, device=device) for _ in range(3)]
        reals = [torch.ones(count, device=device) for _ in range(3)]
        tokens = torch.zeros(count, width, dtype=torch.long, device=device)
        every = [*whole, *flags, *reals, tokens, torch.zeros(count, width, device=device)]
        return Books(*every)

    def every(self) -> list[Tensor]:
        return [getattr(self, f.name) for f in fields(self)]

    def first(self, n: int) -> Books:
        return Books(*(x[:n] for x in self.every()))


def pick(logits_SV: Tensor, books: Books, stops: Tensor, way: str) -> None:
    """Choose a token a slot and move the books on by it. The way is "plain", "greedy", or "cut" (top-k, top-p, min-p);
    with " raw" after it where some slot wants its log-probabilities at temperature 1.
    """
    given, (way, _, raw) = None, way.partition(" ")
    if way == "greedy":
        given = logits_SV.argmax(-1)
    elif way == "cut":
        given = rng.pick(cut(logits_SV.float() * books.cold.unsqueeze(-1), books), rng.uniform(books.key, books.made))
    if not serve(logits_SV):
        return settle_plain(logits_SV, given, books, stops)
    S, V = logits_SV.shape
    mass_SN = mass(logits_SV, books.cold)
    told_SN = mass(logits_SV, torch.where(books.raw, 1.0, books.cold)) if raw else mass_SN
    blocks = mass_SN.shape[1]
    _settle[(S,)](
        logits_SV, mass_SN, told_SN, logits_SV if given is None else given, books.cold, books.raw, stops, books.token, books.filled, books.made,
        books.limit, books.key, books.alive, books.stopped, books.tokens, books.logp, V, blocks, books.tokens.stride(0),
        BLOCKS=triton.next_power_of_2(blocks), BLOCK=BLOCK, STOPS=len(stops), GIVEN=given is not None, num_warps=4,
    )  # fmt: skip


def cut(z_SV: Tensor, books: Books) -> Tensor:
    """`engines.sampling.truncate` with settings of each slot's own, in one sort; temperature 0 is top_k = 1."""
    ordered_SV, order_SV = z_SV.sort(dim=-1, descending=True, stable=True)
    p_SV = torch.softmax(ordered_SV, -1)
    rank_V = torch.arange(z_SV.shape[-1], device=z_SV.device)
    kth_S1 = ordered_SV.gather(-1, (books.top_k - 1).clamp(0, len(rank_V) - 1).unsqueeze(-1))
    out_SV = (ordered_SV < kth_S1) & (books.top_k > 0).unsqueeze(-1)
    out_SV |= (rank_V > 0) & (books.top_k == 1).unsqueeze(-1)  # the likeliest and no other: ties go to the lowest id
    floor_S1 = ordered_SV[:, :1] + books.min_p.unsqueeze(-1).log()
    out_SV |= ordered_SV < floor_S1
    p_SV = torch.where(out_SV, 0.0, p_SV)
    p_SV /= p_SV.sum(-1, keepdim=True)
    out_SV |= (p_SV.cumsum(-1) - p_SV >= books.top_p.unsqueeze(-1)) & (books.top_p < 1).unsqueeze(-1)
    return z_SV.masked_fill(torch.zeros_like(out_SV).scatter(-1, order_SV, out_SV), -torch.inf)


def mass(z_SV: Tensor, cold_S: Tensor) -> Tensor:
    """logsumexp of z / temperature over blocks of the vocabulary, (S, blocks) in fp32."""
    S, V = z_SV.shape
    blocks = triton.cdiv(V, BLOCK)
    out = torch.empty(S, blocks, device=z_SV.device)
    _mass[(S, triton.cdiv(blocks, 4))](z_SV, out, V, blocks, cold_S, BLOCK=BLOCK, EACH=4, num_warps=2)
    return out


def settle_plain(logits_SV: Tensor, given_S: Tensor | None, books: Books, stops: Tensor) -> None:
    z_SV = logits_SV.float() * books.cold.unsqueeze(-1)
    token_S = rng.pick(z_SV, rng.uniform(books.key, books.made)) if given_S is None else given_S
    told_SV = torch.where(books.raw.unsqueeze(-1), logits_SV.float(), z_SV)
    logp_S = told_SV.gather(-1, token_S.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(told_SV, -1)
    live, at = books.alive.nonzero().squeeze(-1), books.made[books.alive]
    books.tokens[live, at], books.logp[live, at] = token_S[live], logp_S[live]
    books.token.copy_(torch.where(books.alive, token_S, books.token))
    books.filled += books.alive
    books.made += books.alive
    ended = torch.isin(token_S, stops) & books.alive
    books.stopped |= ended
    books.alive &= ~ended & (books.made < books.limit)


if triton is not None:

    @triton.jit
    def _mass(z, out, V, NB, cold, BLOCK: tl.constexpr, EACH: tl.constexpr):
        s = tl.program_id(0).to(tl.int64)
        heat = tl.load(cold + s)
        for e in tl.static_range(EACH):  # several blocks a program, so that their loads overlap
            n = tl.program_id(1) * EACH + e
            i = n * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(z + s * V + i, mask=i < V, other=float("-inf")).to(tl.float32) * heat
            top = tl.max(x, 0)
            top = tl.where(top == float("-inf"), 0.0, top)  # a block without any probability weighs nothing
            tl.store(out + s * NB + n, top + tl.log(tl.sum(tl.exp(x - top), 0)), mask=n < NB)

    @triton.jit
    def _uniform(key, position):
        """core.rng.uniform, bit for bit."""
        z = key.to(tl.uint64, bitcast=True) + (position.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB
        z = z ^ (z >> 31)
        return (z >> 40).to(tl.float32) * (1.0 / 16777216.0)

    @triton.jit
    def _settle(logits, mass, told, given, cold, raw, stops, token, filled, made, limit, key, alive, stopped, tokens, logp, V, NB, W,
                BLOCKS: tl.constexpr, BLOCK: tl.constexpr, STOPS: tl.constexpr, GIVEN: tl.constexpr):  # fmt: skip
        s = tl.program_id(0).to(tl.int64)
        if tl.load(alive + s) != 0:
            n, j = tl.arange(0, BLOCKS), tl.arange(0, BLOCK)
            heat = tl.load(cold + s)
            row = logits + s * V
            count = tl.load(made + s)
            m = tl.load(mass + s * NB + n, mask=n < NB, other=float("-inf"))
            top = tl.max(m, 0)
            share = tl.exp(m - top)
            total = tl.sum(share, 0)
            if GIVEN:
                chosen = tl.load(given + s)
            else:
                target = _uniform(tl.load(key + s), count) * total
                upto = tl.cumsum(share, 0)
                block = tl.minimum(tl.sum((upto <= target).to(tl.int32), 0), tl.max(tl.where(share > 0, n, 0), 0))
                rest = target - tl.sum(tl.where(n < block, share, 0.0), 0)
                i = block * BLOCK + j
                p = tl.exp(tl.load(row + i, mask=i < V, other=float("-inf")).to(tl.float32) * heat - top)
                within = tl.sum((tl.cumsum(p, 0) <= rest).to(tl.int32), 0)
                chosen = (block * BLOCK + tl.minimum(within, tl.max(tl.where(p > 0, j, 0), 0))).to(tl.int64)
            tl.store(tokens + s * W + count, chosen)
            t = tl.load(told + s * NB + n, mask=n < NB, other=float("-inf"))
            most = tl.max(t, 0)
            heat = tl.where(tl.load(raw + s) != 0, 1.0, heat)
            logz = most + tl.log(tl.sum(tl.exp(t - most), 0))
            tl.store(logp + s * W + count, tl.load(row + chosen).to(tl.float32) * heat - logz)
            tl.store(token + s, chosen)
            tl.store(filled + s, tl.load(filled + s) + 1)
            tl.store(made + s, count + 1)
            ended = 0
            for e in range(STOPS):
                ended += (tl.load(stops + e) == chosen).to(tl.int32)
            if ended > 0:
                tl.store(stopped + s, 1)
            if (ended > 0) | (count + 1 >= tl.load(limit + s)):
                tl.store(alive + s, 0)
