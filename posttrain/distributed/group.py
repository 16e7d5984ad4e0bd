"""The processes that torchrun (or `posttrain run --gpus N`) has started, by torch.distributed."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.ranks import Alone, Ranks, use
from posttrain.distributed.launch import end_with_launcher

_MADE: list[Group] = []  # of this process
PATIENCE = 1800.0  # seconds that a process waits for another; POSTTRAIN_PATIENCE changes it


class Group:
    """The default process group, and one of gloo beside it for plain objects: NCCL has no time limit that names who is missing."""

    def __init__(self, device: torch.device, shards: int = 8, patience: float = PATIENCE) -> None:
        self.device, self.shards, self.patience = device, shards, patience
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        limit = timedelta(seconds=patience)
        self.plain = dist.new_group(backend="gloo", timeout=limit)  # objects and waits of the loop
        self.saving = dist.new_group(backend="gloo", timeout=limit)  # of the thread that writes checkpoints

    @property
    def lead(self) -> bool:
        return self.rank == 0

    def gather(self, mine: Any) -> list[Any]:
        return self._gather(mine, self.plain)

    def gather_saving(self, mine: Any) -> list[Any]:
        """The same from the thread that writes checkpoints, while the loop may be gathering too."""
        return self._gather(mine, self.saving)

    def from_lead(self, mine: Any) -> Any:
        box = [mine if self.lead else None]
        with named_waits("what the first process decides", self.patience):
            dist.broadcast_object_list(box, src=0, group=self.plain)
        return box[0]

    def sum_(self, x: Tensor) -> Tensor:
        with named_waits("the sums of all processes", self.patience):
            dist.all_reduce(x, op=dist.ReduceOp.SUM)
        return x

    def meet(self, what: str) -> None:
        try:
            dist.monitored_barrier(self.plain, timedelta(seconds=self.patience), wait_all_ranks=self.lead)
        except RuntimeError as error:
            raise Lost(f"at {what}, after {self.patience:.0f} s: {_first_line(error)}") from None

    def _gather(self, mine: Any, group: Any) -> list[Any]:
        out: list[Any] = [None] * self.world
        with named_waits("the results of all processes", self.patience):
            dist.all_gather_object(out, mine, group=group)
        return out


class Lost(UserError):
    """Another process of the run is gone or hangs; what was saved is whole."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"a process of this run did not answer ({what}); what was saved is whole, and the same command goes on from there"
        )


@contextmanager
def named_waits(what: str, patience: float) -> Iterator[None]:
    """A collective that fails because a process has died or hangs, as one sentence."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise Lost(f"waiting for {what}, at most {patience:.0f} s: {_first_line(error)}") from None


@contextmanager
def joined(device: str = "", shards: int = 8, exact: bool = False) -> Iterator[Ranks]:
    """The processes of this run, where torchrun has started several (or one); this one alone otherwise, which samples in pieces too where its
    bits shall be those of several."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        alone = Alone()
        alone.shards = shards if exact else 1
        yield from _using(alone)
        return
    end_with_launcher()
    yield from _using(_group(_place(device), shards))


def _group(place: torch.device, shards: int) -> Group:
    """Made at the first run of a process and kept for those after it; a group that the caller has made is used."""
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=_patience()))
        except (RuntimeError, ValueError, dist.DistError) as error:
            raise UserError(f"the processes of this run could not find each other: {_first_line(error)}") from None
        atexit.register(_leave)
    if not _MADE:
        _MADE.append(Group(place, shards, _patience()))
    _MADE[0].shards = shards
    return _MADE[0]


def _leave() -> None:
    _MADE.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def _using(group: Ranks) -> Iterator[Ranks]:
    before = use(group)
    try:
        yield group
    except RuntimeError as error:  # from inside torch's own collectives
        if group.world == 1 or not re.search(r"gloo|NCCL|ProcessGroup|Connection (closed|reset)|\bdist\b", str(error)):
            raise
        raise Lost(_first_line(error)) from None
    finally:
        use(before)


def _place(device: str) -> torch.device:
    """The device of this process: the GPU of its number on its machine, where there are GPUs."""
    if device.startswith("cuda:"):
        raise UserError(
            f"--device {device} is one GPU, and this run has several processes; use --device cuda or leave it away"
        )
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    local, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= there:
        raise UserError(
            f"process {local} of this machine has no GPU of its own: there are {there}; start at most {there}, or --device cpu"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _patience() -> float:
    text = os.environ.get("POSTTRAIN_PATIENCE", "")
    try:
        seconds = float(text or PATIENCE)
    except ValueError:
        raise UserError(f"POSTTRAIN_PATIENCE is {text!r}; give seconds, such as 1800") from None
    if not seconds > 0:
        raise UserError(f"POSTTRAIN_PATIENCE is {text}; it must be more than 0 seconds")
    return seconds


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
