"""Weights in rows over several processes (FSDP): the whole of them, and a whole copy that samples.

A module's `state_dict` here always means whole tensors, as for any other model, so that whoever saves, exports or copies weights need not know.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


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
            live = dict(self.source.named_parameters())
            for name, p in self.copy.named_parameters():
                p.copy_(whole(live[name]))
            self.stale = False
        return self.copy
