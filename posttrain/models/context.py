"""Context parallel: the tokens of every row are divided among processes, so that a long row needs no card with room for all of it.

Tokens lie end to end as in `packed.py`, each prompt once. They are cut into 2 N equal chunks for N processes, of which process r has chunks r and
2 N - 1 - r: an early one, whose queries see few keys, and a late one. Everything that a layer does token by token stays where the token is.
Keys and values are gathered from all processes in every layer (they are small: 2 KB a token and layer for Qwen2.5-7B, whose
activations are 161 KB), so attention is the ordinary one of each process's queries to the keys before them. What leaves the model is one number for each
action; these are gathered too, and every process computes the whole loss.

Gradients. With L the loss of a row, which all N processes compute from the same numbers, and f_r the part of the model that process r ran:
- numbers per action, x = (x_1 .. x_N): each process goes back from its own x_r with dL/dx_r alone (`own`). Nothing is counted twice.
- keys and values, k = (k_1 .. k_N), which the queries of all processes read: dL/dk_r is the sum over processes of what their queries say (`read`).
- weights: each process has the share of its own tokens, and the sum over processes is the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posttrain.models.packed import PackedBatch
from posttrain.models.rotate_and_gather import rotated


@dataclass(frozen=True)
class Context:
    """The processes that divide rows among them, and which of them this one is."""

    rank: int
    size: int
    group: Any

    def read(self, x_N: Tensor) -> Tensor:
        """The tensors of all processes, end to end, of which each does something else: gradients are summed."""
        y: Tensor = _Gathered.apply(x_N, self, True)  # type: ignore[no-untyped-call]
        return y

    def own(self, x_N: Tensor) -> Tensor:
        """The same where all processes go on with the same sum: each has its own share of the gradient already."""
        y: Tensor = _Gathered.apply(x_N, self, False)  # type: ignore[no-untyped-call]
        return y

    def most(self, count: int, device: torch.device) -> int:
        """The largest number that a process has."""
        import torch.distributed as dist

        x = torch.tensor(count, device=device)
        dist.all_reduce(x, op=dist.ReduceOp.MAX, group=self.group)
        return int(x)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_N: Tensor, context: Context, summed: bool) -> Tensor:
        ctx.context, ctx.summed = context, summed
        every = x_N.new_empty(context.size * len(x_N), *x_N.shape[1:])
        _collective("all_gather_single", "all_gather_into_tensor")(every, x_N.contiguous(), group=context.group)
        return every

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        context: Context = ctx.context
        n = len(dy) // context.size
        if not ctx.summed:
            return dy[context.rank * n :][:n], None, None
        wide = dy.float().contiguous()  # in half precision every hop would round
        mine = wide.new_empty(n, *dy.shape[1:])
        _collective("reduce_scatter_single", "reduce_scatter_tensor")(mine, wide, group=context.group)
        return mine.to(dy.dtype), None, None


def _collective(name: str, before: str) -> Any:
    """By its name, or the one that it had before torch 2.13."""
    import torch.distributed as dist

    return getattr(dist, name, None) or getattr(dist, before)


@dataclass
class DividedBatch(PackedBatch):
    """This process's tokens of a packed batch; source_K says where each key is among those of all processes."""

    context: Context | None = None
    place_N: Tensor | None = None  # of every token of the whole batch: its place after gathering

    @staticmethod
    def share(whole: PackedBatch, context: Context) -> DividedBatch:
        """Two of 2 N chunks; the last ones are filled up with tokens that nobody reads."""
        n, device = len(whole.tokens_N), whole.tokens_N.device
        c = -(-n // (2 * context.size))
        token_M = torch.arange(2 * context.size * c, device=device)
        chunk_M = token_M // c
        late_M = chunk_M >= context.size
        holder_M = torch.where(late_M, 2 * context.size - 1 - chunk_M, chunk_M)
        place_M = holder_M * 2 * c + late_M * c + token_M % c
        mine = token_M[holder_M == context.rank]
        sources, q, k = [], [0], [0]
        for chunk in (context.rank, 2 * context.size - 1 - context.rank):
            for queries, keys_K in runs(whole, chunk * c, (chunk + 1) * c):
                sources.append(place_M[keys_K])
                q.append(q[-1] + queries)
                k.append(k[-1] + len(keys_K))
        fill = (0, len(token_M) - n)
        tokens_M, positions_M = (torch.nn.functional.pad(x, fill) for x in (whole.tokens_N, whole.positions_N))
        cu_q, cu_k = (torch.tensor(x, dtype=torch.int32, device=device) for x in (q, k))
        parts = {f: getattr(whole, f) for f in ("order_K", "first_N", "before_BT", "last_B")}
        return DividedBatch(
            tokens_M[mine], positions_M[mine], torch.cat(sources), cu_q=cu_q, cu_k=cu_k, longest_q=_longest(q), longest_k=_longest(k),
            context=context, place_N=place_M, **parts,
        )  # fmt: skip

    def attention(self, qkv_NHD: Tensor, kv_heads: int) -> Tensor:
        """Queries of this process, keys and values of all."""
        assert self.context is not None
        q, k, v = qkv_NHD.split((qkv_NHD.shape[1] - 2 * kv_heads, kv_heads, kv_heads), 1)
        q, k = (rotated(x.float(), self).to(x.dtype) for x in (q, k))
        kv_K = self.context.read(torch.cat((k, v), 1))[self.source_K]
        return self.attend(q, kv_K[:, :kv_heads].contiguous(), kv_K[:, kv_heads:].contiguous())


def runs(whole: PackedBatch, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
    """The sequences of which tokens start..stop hold queries: how many, and their keys up to the last of these queries."""
    cu_q, cu_k = whole.cu_q.tolist(), whole.cu_k.tolist()
    for i in range(len(cu_q) - 1):
        a, b = max(start, cu_q[i]), min(stop, cu_q[i + 1])
        if a < b:
            yield b - a, whole.source_K[cu_k[i] : cu_k[i + 1] - (cu_q[i + 1] - b)]
    if (a := max(start, cu_q[-1])) < stop:
        yield stop - a, torch.arange(a, stop, device=whole.source_K.device)


@dataclass
class Chosen:
    """Tokens of the whole batch whose states are wanted, by the process that has them; all have equally many, some of them unused."""

    context: Context
    mine_M: Tensor  # places of this process's share among its own tokens
    item_M: Tensor  # which of the wanted ones they are
    at_A: Tensor  # of every wanted one: its place after gathering

    @staticmethod
    def of(share: DividedBatch, token_A: Tensor) -> Chosen:
        context, place_N = share.context, share.place_N
        assert context is not None and place_N is not None
        place_A, each = place_N[token_A], len(share.tokens_N)
        holder_A = place_A // each
        counts = torch.bincount(holder_A, minlength=context.size)
        most = max(1, int(counts.max()))  # a head that one process left out would have a gradient on the others alone
        order_A = holder_A.argsort(stable=True)
        slot_A = torch.empty_like(order_A)
        slot_A[order_A] = torch.arange(len(order_A), device=order_A.device) - (counts.cumsum(0) - counts)[holder_A[order_A]]  # fmt: skip
        item_M = torch.zeros(most, dtype=torch.long, device=order_A.device)
        own = (holder_A == context.rank).nonzero().squeeze(-1)
        item_M[: len(own)] = own
        mine_M = torch.zeros_like(item_M)
        mine_M[: len(own)] = place_A[own] % each
        return Chosen(context, mine_M, item_M, holder_A * most + slot_A)

    def gathered(self, x_M: Tensor) -> Tensor:
        """A number (or several) for every wanted token, from those of this process's share."""
        return self.context.own(x_M)[self.at_A]


def _longest(cumulative: list[int]) -> int:
    return max(b - a for a, b in zip(cumulative, cumulative[1:], strict=False))
