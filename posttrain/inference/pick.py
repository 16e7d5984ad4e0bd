"""From logits to the next state of every slot in two kernels: first the log-sum-exp of each block of the vocabulary, then the
token by inverse CDF (the block first, then the token in it), its log-probability, and the slot's new state.

The distribution is that of `core.rng.pick`, which the plain-torch version calls; the kernels never write a (S, V) tensor of
probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.inference.masks import MASKED
from posttrain.models.kernels import tl, triton, use_kernels

BLOCK = 1024  # tokens of the vocabulary per block


@dataclass
class SlotState:
    """The state of every slot, on the device; `first(n)` is a view of the first n slots."""

    token: Tensor  # the last token, input of the next step
    prefix_len: Tensor  # positions in pages shared with its group, before its own
    cache_len: Tensor  # positions in use in the KV cache
    num_generated: Tensor  # new tokens so far
    max_tokens: Tensor  # new tokens at most
    key: Tensor  # random identity
    top_k: Tensor  # 0: off; 1 where the temperature is 0
    alive: Tensor  # still generating
    stopped: Tensor  # ended by a stop token
    raw_logp: Tensor  # report log-probabilities at temperature 1
    inv_temperature: Tensor  # 1 / temperature
    top_p: Tensor  # 1: off
    min_p: Tensor  # 0: off
    tokens: Tensor  # (S, T) generated
    logp: Tensor  # (S, T) and their log-probabilities

    @staticmethod
    def empty(count: int, width: int, device: torch.device) -> SlotState:
        integers = [torch.zeros(count, dtype=torch.long, device=device) for _ in range(7)]
        flags = [torch.zeros(count, dtype=torch.bool, device=device) for _ in range(3)]
        floats = [torch.ones(count, device=device) for _ in range(3)]
        tokens = torch.zeros(count, width, dtype=torch.long, device=device)
        tensors = [*integers, *flags, *floats, tokens, torch.zeros(count, width, device=device)]
        return SlotState(*tensors)

    def tensors(self) -> list[Tensor]:
        return [getattr(self, f.name) for f in fields(self)]

    def first(self, n: int) -> SlotState:
        return SlotState(*(x[:n] for x in self.tensors()))


def choose_sampling_mode(hows: set[Sampling], masked: bool = False) -> str:
    """The cheapest mode that is right for every slot that runs: "greedy", "plain", or "truncated" (top-k, top-p, min-p, masks: the
    kernel's plain draw might round into a token of probability 0); followed by " raw" where some slot reports log-probabilities at
    temperature 1, and by " masked" where some slot may not take every token."""
    if all(h.temperature == 0 for h in hows):
        mode = "greedy"
    else:
        plain = all(h.temperature and not h.top_k and h.top_p == 1 and not h.min_p for h in hows)
        mode = "plain" if plain and not masked else "truncated"
    return mode + (" raw" if any(h.raw_logp for h in hows) else "") + (MASKED if masked else "")


def pick(logits_SV: Tensor, state: SlotState, stop_ids: Tensor, sampling_mode: str) -> None:
    """Choose one token per slot and advance the state by it, in the mode that `choose_sampling_mode` gives."""
    given, (sampling_mode, _, raw) = None, sampling_mode.partition(" ")
    if sampling_mode == "greedy":
        given = logits_SV.argmax(-1)
    elif sampling_mode == "truncated":
        given = rng.pick(
            truncate(logits_SV.float() * state.inv_temperature.unsqueeze(-1), state),
            rng.uniform(state.key, state.num_generated),
        )
    if not use_kernels(logits_SV):
        return advance_plain(logits_SV, given, state, stop_ids)
    S, V = logits_SV.shape
    logsumexp_SN = block_logsumexp(logits_SV, state.inv_temperature)
    reported_SN = (
        block_logsumexp(logits_SV, torch.where(state.raw_logp, 1.0, state.inv_temperature)) if raw else logsumexp_SN
    )
    blocks = logsumexp_SN.shape[1]
    _advance[(S,)](
        logits_SV, logsumexp_SN, reported_SN, logits_SV if given is None else given, state.inv_temperature, state.raw_logp, stop_ids, state.token, state.cache_len, state.num_generated,
        state.max_tokens, state.key, state.alive, state.stopped, state.tokens, state.logp, V, blocks, state.tokens.stride(0),
        BLOCKS=triton.next_power_of_2(blocks), BLOCK=BLOCK, NUM_STOP_IDS=len(stop_ids), GIVEN=given is not None, num_warps=4,
    )  # fmt: skip


def truncate(z_SV: Tensor, state: SlotState) -> Tensor:
    """`inference.sampling.truncate` with each slot's own settings, in one sort; temperature 0 is top_k = 1."""
    ordered_SV, order_SV = z_SV.sort(dim=-1, descending=True, stable=True)
    p_SV = torch.softmax(ordered_SV, -1)
    rank_V = torch.arange(z_SV.shape[-1], device=z_SV.device)
    kth_S1 = ordered_SV.gather(-1, (state.top_k - 1).clamp(0, len(rank_V) - 1).unsqueeze(-1))
    out_SV = (ordered_SV < kth_S1) & (state.top_k > 0).unsqueeze(-1)
    out_SV |= (rank_V > 0) & (state.top_k == 1).unsqueeze(-1)  # the likeliest and no other: ties go to the lowest id
    floor_S1 = ordered_SV[:, :1] + state.min_p.unsqueeze(-1).log()
    out_SV |= ordered_SV < floor_S1
    p_SV = torch.where(out_SV, 0.0, p_SV)
    p_SV /= p_SV.sum(-1, keepdim=True)
    out_SV |= (p_SV.cumsum(-1) - p_SV >= state.top_p.unsqueeze(-1)) & (state.top_p < 1).unsqueeze(-1)
    return z_SV.masked_fill(torch.zeros_like(out_SV).scatter(-1, order_SV, out_SV), -torch.inf)


def block_logsumexp(z_SV: Tensor, inv_temperature_S: Tensor) -> Tensor:
    """logsumexp of z / temperature over blocks of the vocabulary, (S, blocks) in fp32."""
    S, V = z_SV.shape
    blocks = triton.cdiv(V, BLOCK)
    out = torch.empty(S, blocks, device=z_SV.device)
    _block_logsumexp[(S, triton.cdiv(blocks, 4))](
        z_SV, out, V, blocks, inv_temperature_S, BLOCK=BLOCK, BLOCKS_PER_PROGRAM=4, num_warps=2
    )
    return out


def advance_plain(logits_SV: Tensor, given_S: Tensor | None, state: SlotState, stop_ids: Tensor) -> None:
    z_SV = logits_SV.float() * state.inv_temperature.unsqueeze(-1)
    token_S = rng.pick(z_SV, rng.uniform(state.key, state.num_generated)) if given_S is None else given_S
    reported_SV = torch.where(state.raw_logp.unsqueeze(-1), logits_SV.float(), z_SV)
    logp_S = reported_SV.gather(-1, token_S.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(reported_SV, -1)
    live, at = state.alive.nonzero().squeeze(-1), state.num_generated[state.alive]
    state.tokens[live, at], state.logp[live, at] = token_S[live], logp_S[live]
    state.token.copy_(torch.where(state.alive, token_S, state.token))
    state.cache_len += state.alive
    state.num_generated += state.alive
    ended = torch.isin(token_S, stop_ids) & state.alive
    state.stopped |= ended
    state.alive &= ~ended & (state.num_generated < state.max_tokens)


if triton is not None:

    @triton.jit
    def _block_logsumexp(z, out, V, NB, inv_temperature, BLOCK: tl.constexpr, BLOCKS_PER_PROGRAM: tl.constexpr):
        s = tl.program_id(0).to(tl.int64)
        inv_t = tl.load(inv_temperature + s)
        for e in tl.static_range(BLOCKS_PER_PROGRAM):  # several blocks per program, so that their loads overlap
            n = tl.program_id(1) * BLOCKS_PER_PROGRAM + e
            i = n * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(z + s * V + i, mask=i < V, other=float("-inf")).to(tl.float32) * inv_t
            top = tl.max(x, 0)
            top = tl.where(top == float("-inf"), 0.0, top)  # a block without any probability has mass 0
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
    def _advance(logits, block_logsumexp, reported, given, inv_temperature, raw_logp, stop_ids, token, cache_len, num_generated, max_tokens, key, alive, stopped, tokens, logp, V, NB, W,
                BLOCKS: tl.constexpr, BLOCK: tl.constexpr, NUM_STOP_IDS: tl.constexpr, GIVEN: tl.constexpr):  # fmt: skip
        s = tl.program_id(0).to(tl.int64)
        if tl.load(alive + s) != 0:
            n, j = tl.arange(0, BLOCKS), tl.arange(0, BLOCK)
            inv_t = tl.load(inv_temperature + s)
            row = logits + s * V
            count = tl.load(num_generated + s)
            m = tl.load(block_logsumexp + s * NB + n, mask=n < NB, other=float("-inf"))
            top = tl.max(m, 0)
            share = tl.exp(m - top)
            total = tl.sum(share, 0)
            if GIVEN:
                chosen = tl.load(given + s)
            else:
                target = _uniform(tl.load(key + s), count) * total
                cumulative = tl.cumsum(share, 0)
                block = tl.minimum(tl.sum((cumulative <= target).to(tl.int32), 0), tl.max(tl.where(share > 0, n, 0), 0))
                remainder = target - tl.sum(tl.where(n < block, share, 0.0), 0)
                i = block * BLOCK + j
                p = tl.exp(tl.load(row + i, mask=i < V, other=float("-inf")).to(tl.float32) * inv_t - top)
                offset = tl.sum((tl.cumsum(p, 0) <= remainder).to(tl.int32), 0)
                chosen = (block * BLOCK + tl.minimum(offset, tl.max(tl.where(p > 0, j, 0), 0))).to(tl.int64)
            tl.store(tokens + s * W + count, chosen)
            t = tl.load(reported + s * NB + n, mask=n < NB, other=float("-inf"))
            most = tl.max(t, 0)
            inv_t = tl.where(tl.load(raw_logp + s) != 0, 1.0, inv_t)
            logz = most + tl.log(tl.sum(tl.exp(t - most), 0))
            tl.store(logp + s * W + count, tl.load(row + chosen).to(tl.float32) * inv_t - logz)
            tl.store(token + s, chosen)
            tl.store(cache_len + s, tl.load(cache_len + s) + 1)
            tl.store(num_generated + s, count + 1)
            ended = 0
            for e in range(NUM_STOP_IDS):
                ended += (tl.load(stop_ids + e) == chosen).to(tl.int32)
            if ended > 0:
                tl.store(stopped + s, 1)
            if (ended > 0) | (count + 1 >= tl.load(max_tokens + s)):
                tl.store(alive + s, 0)
