"""Weights from memory to memory: a worker takes a version from the device that trains, and not from a file.

The process that trains keeps the versions that are in use as flat copies, since it goes on changing the weights. A worker takes one when it
begins a shard of it, never before: a broadcast to all at once would make those that are ready wait for those that still sample.

    ipc    the copy itself, opened by its CUDA handle: workers of this machine, on the same card or another
    nccl   sent from card to card, through a process group of the two
    gloo   sent over TCP, likewise: for CPUs

What cannot be had so is had from the file, which is written anyway: a restart needs it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy
from posttrain.distributed.flat import Layout, laid, size_of, views
from posttrain.distributed.pool import OK, REFUSED, Died, Handle, NotTaken
from posttrain.distributed.versions import Version, sampled
from posttrain.rewards.runtime.score import say_once
from posttrain.runs.wire import pack, unpack

FILES = "files"
_PIECE = 1 << 28  # bytes sent at a time
_JOIN, _SEND = timedelta(seconds=60), timedelta(seconds=300)
_PATIENCE = 5.0  # seconds that the end of a run waits for what is being sent
_OF_HANDLE = (
    "storage_handle", "storage_size_bytes", "storage_offset_bytes", "ref_counter_handle", "ref_counter_offset",
    "event_handle", "event_sync_required",
)  # fmt: skip


@dataclass
class Slot:
    """A version in memory."""

    flat: Tensor
    number: int = -1
    digest: str = ""


class Direct:
    """The side of the process that trains."""

    def __init__(self, way: str, host: str = "127.0.0.1") -> None:
        self.way, self.host = way, host
        self.layout: Layout = []
        self.slots: list[Slot] = []
        self.groups: dict[str, Any] = {}
        self.told: set[tuple[str, int]] = set()  # (worker, slot) whose memory it has been told of
        self.gone: set[str] = set()  # workers that nobody sends to any more
        self.sending: list[threading.Thread] = []
        self.store = None if way == "ipc" else TCPStore(host, 0, None, True, wait_for_workers=False)
        self.lock = threading.Lock()

    def hold(self, version: Version, policy: Policy) -> None:
        """Copy the weights as they are now, into the memory of a version that nobody can ask for any more where there is one."""
        table = sampled(policy)
        self.layout = laid(table)
        size = size_of(self.layout)
        with self.lock:
            slot = next((s for s in self.slots if s.number in (-1, version.number) and len(s.flat) == size), None)
            if slot is None:
                slot = Slot(torch.empty(size, dtype=torch.uint8, device=next(iter(table.values())).device))
                self.slots.append(slot)
            slot.number, slot.digest = version.number, ""
        for name, x in views(slot.flat, self.layout):
            x.copy_(table[name])
        if slot.flat.is_cuda:
            torch.cuda.synchronize(slot.flat.device)
        slot.digest = version.digest

    def forget(self, keep: Collection[int]) -> None:
        """The memory of all others may be used again."""
        with self.lock:
            for slot in self.slots:
                if slot.number not in keep:
                    slot.number, slot.digest = -1, ""

    def ticket(self, worker: str, digest: str) -> dict[str, Any] | None:
        """What a worker needs to know to take a version; None where it is not in memory."""
        with self.lock:
            same = [(s.number, i) for i, s in enumerate(self.slots) if s.digest == digest]
        if not same:
            return None
        _, place = max(same)  # an update may change nothing: of equal versions the newest is needed longest
        told: dict[str, Any] = {"way": self.way, "worker": worker, "slot": place, "layout": self.layout}
        if self.store is not None:
            return told | {"host": self.host, "port": self.store.port}
        if (worker, place) in self.told:
            return told
        self.told.add((worker, place))
        return told | {"device": self.slots[place].flat.device.index, "handle": handle_of(self.slots[place].flat)}

    def giving(self, ticket: dict[str, Any]) -> threading.Thread | None:
        """Send in another thread what a ticket says, where it must be sent. It ends when the worker has it all; a worker that says it has not is
        dropped and not waited for."""
        if self.store is None:
            return None
        thread = threading.Thread(
            target=self._send, args=(ticket,), name=f"weights for {ticket['worker']}", daemon=True
        )
        self.sending = [t for t in self.sending if t.is_alive()] + [thread]
        thread.start()
        return thread

    def _send(self, ticket: dict[str, Any]) -> None:
        with suppress(RuntimeError):  # the worker says so, or is gone
            worker, flat = ticket["worker"], self.slots[ticket["slot"]].flat
            if worker not in self.groups:
                if not self._came(worker):
                    return
                self.groups[worker] = pair(ticket, self.store, 0, flat.device)
            moved(self.groups[worker].send, flat, 1)

    def _came(self, worker: str) -> bool:
        """Wait until the worker joins; whether it does. A process group alone would wait for one that is gone until its time is over."""
        end = time.monotonic() + _JOIN.total_seconds()
        while worker not in self.gone and time.monotonic() < end:
            if self.store is not None and self.store.check([worker]):
                return True
            time.sleep(0.002)
        return False

    def drop(self, worker: str) -> None:
        """A worker that is gone: whoever sends to it stops."""
        self.gone.add(worker)
        group = self.groups.pop(worker, None)
        if group is not None and hasattr(group, "abort"):
            with suppress(RuntimeError):
                group.abort()

    def close(self) -> None:
        """When the workers have ended. A thread within a process group would end Python with an abort, so none is left behind."""
        for thread in self.sending:
            self.drop(thread.name.rpartition(" ")[2])
        for worker in list(self.groups):
            self.drop(worker)
        for thread in self.sending:
            thread.join(_PATIENCE)


class Handed:
    """A worker as the pool sees it, whose weights are handed to it."""

    def __init__(self, inner: Any, direct: Direct, index: int) -> None:
        self.inner, self.direct, self.index = inner, direct, index
        self.lives, self.life = 0, None  # processes so far, and the present one
        self.has, self.off = "", False

    def start(self) -> bytes:
        reply: bytes = self.inner.start()
        if self.inner.life is not self.life:
            self.direct.drop(self.worker)
            self.lives, self.life, self.has = self.lives + 1, self.inner.life, ""
        return reply

    @property
    def worker(self) -> str:
        return f"{self.index}.{self.lives}"

    def ask(self, message: bytes, timeout: float) -> bytes:
        asked = unpack(message)
        wanted = asked.get("weights", "")
        ticket = None if self.off or wanted in ("", self.has) else self.direct.ticket(self.worker, wanted)
        if ticket is None:
            return self._plain(message, wanted, timeout)
        sending = self.direct.giving(ticket)
        try:
            reply: bytes = self.inner.ask(pack(asked | {"ticket": ticket}), timeout)
        except Died:
            self.direct.drop(self.worker)
            raise
        if reply[:1] == OK:
            if sending is not None:
                sending.join()
            self.has = wanted
            return reply
        self.direct.drop(self.worker)
        if reply[:1] != REFUSED:
            return reply
        self.off = True
        say_once(
            f"--weights-over {self.direct.way}: {reply[1:].decode(errors='replace')}; they are read from files instead"
        )
        return self._plain(message, wanted, timeout)

    def _plain(self, message: bytes, wanted: str, timeout: float) -> bytes:
        reply: bytes = self.inner.ask(message, timeout)
        self.has = wanted or self.has
        return reply

    def kill(self) -> None:
        self.inner.kill()
        self.direct.drop(self.worker)


class Taker:
    """The side of a worker."""

    def __init__(self) -> None:
        self.groups: dict[str, Any] = {}
        self.opened: dict[int, Tensor] = {}  # slots of the process that trains

    @torch.no_grad()
    def take(self, ticket: dict[str, Any], policy: Any) -> None:
        """The weights that a ticket is for, into the policy. NotTaken where that fails: then some of them may be others."""
        mine = sampled(policy)
        wrong = {name for name, *_ in ticket["layout"]} ^ set(mine)
        if wrong:
            raise UserError(
                f"the weights that came are of another model than this worker has: {sorted(wrong)[:3]} are in one of them only; the worker "
                "must have the same --model"
            )
        try:
            found = (
                self._opened(ticket)
                if ticket["way"] == "ipc"
                else self._received(ticket, next(iter(mine.values())).device)
            )
            for name, x in views(found, ticket["layout"]):
                mine[name].copy_(x)
            if found.is_cuda:  # until then the memory must stay as it is
                torch.cuda.synchronize(found.device)
        except (RuntimeError, ValueError, TypeError) as error:
            self.groups.pop(ticket["worker"], None)  # whoever still sends is told by that
            raise NotTaken(str(error).strip().partition("\n")[0][:200] or type(error).__name__) from None

    def _opened(self, ticket: dict[str, Any]) -> Tensor:
        slot = ticket["slot"]
        if slot not in self.opened:
            named = {k: bytes.fromhex(x) if isinstance(x, str) else x for k, x in ticket["handle"].items()}
            shape = torch.Size([size_of(ticket["layout"])])
            self.opened[slot] = rebuild_cuda_tensor(
                Tensor, shape, (1,), 0, torch.UntypedStorage, torch.uint8, ticket["device"], requires_grad=False, **named
            )  # fmt: skip
        return self.opened[slot]

    def _received(self, ticket: dict[str, Any], device: torch.device) -> Tensor:
        if ticket["worker"] not in self.groups:
            store = TCPStore(ticket["host"], ticket["port"], None, False, _JOIN)
            store.set(ticket["worker"], "here")
            self.groups[ticket["worker"]] = pair(ticket, store, 1, device)
        flat = torch.empty(size_of(ticket["layout"]), dtype=torch.uint8, device=device)
        moved(self.groups[ticket["worker"]].recv, flat, 0)
        return flat


def pair(ticket: dict[str, Any], store: Any, rank: int, device: torch.device) -> Any:
    """The process group of the process that trains (0) and one worker (1); nothing of torch's default group is touched."""
    own = PrefixStore(f"weights {ticket['worker']}", store)
    if ticket["way"] == "nccl":
        if device.type != "cuda":
            raise RuntimeError("NCCL needs a GPU on both sides")
        torch.cuda.set_device(device)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _SEND
        return dist.ProcessGroupNCCL(own, rank, 2, options)
    return dist.ProcessGroupGloo(own, rank, 2, _JOIN)  # for each piece too


def moved(send: Callable[..., Any], flat: Tensor, other: int) -> None:
    """Send a flat tensor, or receive it, in pieces; beside what the device does otherwise."""
    aside = torch.cuda.Stream(flat.device) if flat.is_cuda else None
    with torch.cuda.stream(aside) if aside is not None else nullcontext():
        for i, piece in enumerate(flat.split(_PIECE)):
            send([piece], other, i).wait()
    if aside is not None:
        aside.synchronize()


def handle_of(flat: Tensor) -> dict[str, Any]:
    """What another process opens the memory of a CUDA tensor by, as numbers and texts."""
    fields = reduce_tensor(flat)[1]
    named = zip(_OF_HANDLE, (*fields[7:10], *fields[11:15]), strict=True)
    return {k: x.hex() if isinstance(x, bytes) else x for k, x in named}


def handed(handles: list[Any], direct: Direct | None) -> list[Handle]:
    """The same workers, with their weights from memory."""
    return handles if direct is None else [Handed(handle, direct, i) for i, handle in enumerate(handles)]
