"""Weights in rows over several processes (FSDP): the whole of them, and a whole copy that samples.

A module's `state_dict` here always means whole tensors, as for any other model, so that whoever saves, exports or copies weights need not know.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


_BUCKET = 1 << 26  # numbers of one message, unless a single weight has more


def in_rows(module: object) -> bool:
    """Whether each process has only its own rows of this module's weights."""
    return _is_a(module, "torch.distributed.fsdp", "FSDPModule")


def is_row(x: Tensor) -> TypeGuard[DTensor]:
    """Whether this process has only its own rows of the tensor."""
    return _is_a(x, "torch.distributed.tensor", "DTensor")


def _is_a(x: object, module: str, name: str) -> bool:
    """FSDP takes a second to import, which a run of one process never needs: where nobody has imported it, nothing is of its classes."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(x, kind)


def local(x: Tensor) -> Tensor:
    """This process's rows; a tensor that it has whole as it is."""
    return x.to_local() if is_row(x) else x


def own_parameters(policy: Any) -> dict[str, Tensor]:
    """Every parameter of a policy by name, of one in rows this process's, as plain tensors that share its memory: to be read or changed in
    place. Layers that are gathered are let go, so that the next pass sees a change."""
    parts: Iterable[Any] = policy.modules() if isinstance(policy, nn.Module) else ()
    for part in parts:
        if in_rows(part):
            part.reshard()
    return {name: local(p.detach()) for name, p in policy.named_parameters()}


@torch.no_grad()
def whole(x: Tensor) -> Tensor:
    """All rows, gathered: every process must ask at the same time."""
    return x.full_tensor() if is_row(x) else x


def own_rows(x: Tensor, rank: int, world: int) -> Tensor:
    """Of a whole tensor the rows that FSDP gives to a process: equal shares, the last ones smaller or empty."""
    shares = x.chunk(world)
    return shares[rank] if rank < len(shares) else x[:0]


def rows_like(mine: Tensor, given: Tensor, rank: int, world: int) -> Tensor:
    """The rows of this process out of a whole tensor, or as they are where only these were read."""
    return given if given.shape == mine.shape else own_rows(given, rank, world)


def wholes(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All rows of each, gathered: every process must ask at the same time."""
    made = {
        name: torch.empty(x.shape, dtype=x.dtype, device=local(x).device) if is_row(x) else x
        for name, x in named.items()
    }
    rows = [name for name, x in named.items() if is_row(x)]
    gather_into([made[name] for name in rows], [named[name] for name in rows])
    return made


@torch.no_grad()
def gather_into(copies: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
    """The whole of each into its copy, rounded to the copy's type before it is sent: a few large messages, not one for each weight (272 of
    them took most of a second). Every process must ask at the same time."""
    bucket: list[tuple[Tensor, DTensor]] = []
    for to, x in zip(copies, rows, strict=True):
        if not is_row(x):
            to.copy_(x)
            continue
        first = bucket[0] if bucket else None
        if first and (
            first[0].dtype != to.dtype or first[1].device_mesh != x.device_mesh or _size(bucket) + to.numel() > _BUCKET
        ):
            _send(bucket)
            bucket = []
        bucket.append((to, x))
    if bucket:
        _send(bucket)


def _size(bucket: Sequence[tuple[Tensor, Any]]) -> int:
    return sum(to.numel() for to, _ in bucket)


def _send(bucket: Sequence[tuple[Tensor, DTensor]]) -> None:
    """One message of each process: its rows of all these weights, end to end, as long as the longest of them."""
    import torch.distributed as dist

    mesh = bucket[0][1].device_mesh
    world = mesh.size()
    shares = [to.chunk(world) for to, _ in bucket]  # as `own_rows` cuts
    sizes = [[s[rank].numel() if rank < len(s) else 0 for s in shares] for rank in range(world)]
    like = bucket[0][1].to_local()
    mine = torch.zeros(max(map(sum, sizes)), dtype=bucket[0][0].dtype, device=like.device)
    own = sizes[mesh.get_local_rank()]
    for into, (_, x) in zip(mine[: sum(own)].split(own), bucket, strict=True):
        into.copy_(x.to_local().flatten())
    every = torch.empty(world * len(mine), dtype=mine.dtype, device=mine.device)
    dist.all_gather_into_tensor(every, mine, group=mesh.get_group())
    for rank, told in enumerate(every.chunk(world)):
        for from_, share in zip(told[: sum(sizes[rank])].split(sizes[rank]), shares, strict=True):
            if rank < len(share):
                share[rank].copy_(from_.view_as(share[rank]))


@torch.no_grad()
def load_whole(into: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> tuple[list[str], list[str]]:
    """Whole tensors into rows, by name; which names were missing, and which were not expected."""
    for name, x in into.items():
        if name in given and is_row(x):
            mesh = x.device_mesh
            x.to_local().copy_(rows_like(x.to_local(), given[name], mesh.get_local_rank(), mesh.size()))
        elif name in given:
            x.copy_(given[name])
    return [name for name in into if name not in given], [name for name in given if name not in into]


class Whole:
    """A whole copy of a sharded model for sampling; filled again when it is asked for after the weights have moved."""

    def __init__(self, source: nn.Module, copy: nn.Module) -> None:
        self.source, self.copy, self.stale = source, copy, False

    @torch.no_grad()
    def model(self) -> Any:
        """All processes ask at the same time."""
        if self.stale:
            live, mine = dict(self.source.named_parameters()), dict(self.copy.named_parameters())
            gather_into(list(mine.values()), [live[name] for name in mine])
            self.stale = False
        return self.copy
