"""Plain sampling: the trainer's own weights and modules, so what was sampled is what is trained.

A prompt is prefilled once for all its answers; rows whose answer has ended are dropped from the batch as they end; every
token comes with its log-probability. Each token is one hashed uniform of (seed, step, prompt, sample, position) put
through the inverse CDF, so an answer does not depend on the batch it was sampled in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from posttrain.core import rng
from posttrain.core.sampling import Sampling as Sampling


class Cache(Protocol):
    """Keys and values of rows that are being sampled: the model's own type."""

    def select(self, rows: Tensor) -> None: ...


C = TypeVar("C", bound=Cache)


class Model(Protocol[C]):
    """What the sampler needs of a model: Decoder and HFDecoder have it."""

    def prefill(
        self, tokens_BT: Tensor, lengths_B: Tensor, slots: int, seen: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, C]: ...
    def step(self, tokens_B: Tensor, cache: C) -> Tensor: ...
    def logits(self, h: Tensor) -> Tensor: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...


@dataclass
class Sample:
    """One answer."""

    tokens: Tensor  # (T,) ids, the stop token included
    logp_T: Tensor  # the log-probability of each
    stopped: bool  # False when it reached the token limit


@torch.no_grad()
def generate(
    model: Model[C], contexts: Sequence[Tensor], keys: Sequence[Sequence[int]], how: Sampling,
    stop_ids: Sequence[int], seen: Mapping[str, Tensor] | None = None,
    finished: Callable[[int, int, Tensor], None] | None = None,
) -> list[list[Sample]]:  # fmt: skip
    """For each context, one answer per key (its random identity). Contexts are prefilled one by one: none shares with
    another. seen: what else the contexts hold (pictures), stacked. finished: told (context, answer, tokens) of each answer that
    ends before the last one does."""
    if not contexts:
        return []
    device, counts = next(model.parameters()).device, torch.tensor([len(k) for k in keys])
    lengths = torch.tensor([len(c) for c in contexts])
    padded = torch.zeros(len(contexts), int(lengths.max()), dtype=torch.long)
    for row, context in enumerate(contexts):
        padded[row, : len(context)] = context
    slots = int(lengths.max()) + how.max_tokens
    h_PD, cache = model.prefill(padded.to(device), lengths.to(device), slots, **({"seen": seen} if seen else {}))
    rows = torch.repeat_interleave(torch.arange(len(contexts)), counts).to(device)
    cache.select(rows)
    key_B = torch.tensor([k for group in keys for k in group], dtype=torch.int64, device=device)
    told = None
    if finished is not None:
        places = [(g, i) for g, group in enumerate(keys) for i in range(len(group))]
        told = lambda b, tokens: finished(*places[b], tokens)  # noqa: E731
    flat = _decode(model, h_PD[rows], cache, key_B, how, torch.tensor(list(stop_ids), device=device), told)
    ends = counts.cumsum(0).tolist()
    return [flat[end - n : end] for end, n in zip(ends, counts.tolist(), strict=True)]


def _decode(
    model: Model[C], h_BD: Tensor, cache: C, key_B: Tensor, how: Sampling, stop_ids: Tensor,
    told: Callable[[int, Tensor], None] | None = None,
) -> list[Sample]:  # fmt: skip
    B = key_B.numel()
    tokens = torch.zeros(B, how.max_tokens, dtype=torch.long, device=key_B.device)
    logp = torch.zeros(B, how.max_tokens, device=key_B.device)
    ended = torch.full((B,), -1, dtype=torch.long, device=key_B.device)
    alive = torch.arange(B, device=key_B.device)  # the original row of each row still in the batch
    running = torch.ones(B, dtype=torch.bool, device=key_B.device)
    for t in range(how.max_tokens):
        token, chosen = draw(model.logits(h_BD), key_B[alive], t, how)
        tokens[alive, t], logp[alive, t] = token, chosen
        done = torch.isin(token, stop_ids)
        ended[alive[done & running]] = t
        if told is not None:
            for b in alive[done & running].tolist():
                told(b, tokens[b, : t + 1].cpu().clone())
        running &= ~done
        left = int(running.sum())
        if left == 0 or t + 1 == how.max_tokens:
            break
        if left <= 0.8 * alive.numel():  # drop ended rows once that outweighs the cost of moving the cache
            where = running.nonzero().squeeze(-1)
            alive, token, running = alive[where], token[where], running[where]
            cache.select(where)
        h_BD = model.step(token, cache)
    lengths = torch.where(ended >= 0, ended + 1, t + 1).tolist()
    stopped, tokens, logp = (ended >= 0).tolist(), tokens.cpu(), logp.cpu()
    return [Sample(tokens[b, :n].clone(), logp[b, :n].clone(), stopped[b]) for b, n in enumerate(lengths)]


def draw(logits_BV: Tensor, key_B: Tensor, position: int, how: Sampling) -> tuple[Tensor, Tensor]:
    """One token per row and its log-probability."""
    raw_BV = logits_BV.float()
    logits_BV = raw_BV / (how.temperature or 1.0)
    if how.temperature == 0:
        token_B = logits_BV.argmax(-1)
    else:
        token_B = rng.pick(truncate(logits_BV, how), rng.uniform(key_B, position))
    reported_BV = raw_BV if how.raw_logp else logits_BV
    return token_B, reported_BV.gather(-1, token_B.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(reported_BV, -1)


def truncate(logits_BV: Tensor, how: Sampling) -> Tensor:
    """-inf outside the top k, the nucleus of mass top_p, and tokens under min_p of the likeliest."""
    if how.top_k:
        kth = logits_BV.topk(min(how.top_k, logits_BV.shape[-1]), -1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < kth, -torch.inf)
    if how.min_p:
        floor = logits_BV.amax(-1, keepdim=True) + torch.log(torch.tensor(how.min_p))
        logits_BV = logits_BV.masked_fill(logits_BV < floor, -torch.inf)
    if how.top_p < 1:
        ordered, order = logits_BV.sort(-1, descending=True)
        before = torch.softmax(ordered, -1).cumsum(-1) - torch.softmax(ordered, -1)
        cut = torch.zeros_like(logits_BV, dtype=torch.bool).scatter(-1, order, before >= how.top_p)
        logits_BV = logits_BV.masked_fill(cut, -torch.inf)
    return logits_BV
