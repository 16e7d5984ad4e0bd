"""The outer side of a running program: its pipes, its deadline, its output limit, and the frames spoken with it."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from posttrain.sandbox.types import Finished, Limits, SandboxBroken
from posttrain.sandbox.values import LARGEST

_GRACE = 10.0  # seconds for the sandbox itself to be set up, which is not the program's fault
_MOST = 0.5  # of the CPU limit: the kernel ends by counting ticks, and on a busy host those run ahead of the time that it reports


@dataclass(frozen=True)
class Ending:
    """How a process ended: its exit code, or the signal that ended it, and the seconds of processor it used."""

    exit: int | None
    signal: int = 0
    cpu: float = 0.0
    memory: bool = False  # it was ended because its cgroup had no memory left


@dataclass(frozen=True)
class Handle:
    """A started sandbox: the outer ends of its pipes, how to end it, and how to learn how it ended."""

    link: socket.socket
    out: int
    err: int
    done: int  # readable once it has ended
    kill: Callable[[], None]
    wait: Callable[[], Ending]


class Running:
    """One program from its start to `finish`. Everything that it sends is read while it is waited for, and counted."""

    def __init__(self, handle: Handle, limits: Limits) -> None:
        self.handle, self.limits = handle, limits
        self.began = time.monotonic()
        self.due = self.began + _GRACE
        self.why, self.texts, self.inbox, self.talking = "", {handle.out: b"", handle.err: b""}, b"", True
        self.finished: Finished | None = None
        self.selector = selectors.DefaultSelector()
        for fd in (handle.out, handle.err, handle.done):
            os.set_blocking(fd, False)
            self.selector.register(fd, selectors.EVENT_READ)
        handle.link.setblocking(False)
        self.selector.register(handle.link, selectors.EVENT_READ)

    def start(self, job: bytes, sign: bytes) -> None:
        """Send the job and wait for the sign that the sandbox stands; from there the program's clock runs."""
        with suppress(TimeoutError, OSError):
            self.handle.link.settimeout(_GRACE)
            self.handle.link.sendall(job)
            self.handle.link.setblocking(False)
        while not self.inbox.startswith(sign) and self.step():
            pass
        if not self.inbox.startswith(sign):
            self.finish()
            said = self.texts[self.handle.err].decode("utf-8", "replace").strip()
            raise SandboxBroken(f"the sandbox did not start: {said[:400] or self.why or 'it said nothing'}")
        self.inbox = self.inbox[len(sign) :]
        self.began = time.monotonic()
        self.due = self.began + self.limits.seconds

    def step(self) -> bool:
        """Read what has come, or wait for it; False when there is nothing more to come or a limit was hit."""
        if self.why or not self.selector.get_map():
            return False
        left = self.due - time.monotonic()
        ready = self.selector.select(left) if left > 0 else []
        if not ready and time.monotonic() >= self.due:
            return self.end("wall time")
        for key, _ in ready:
            self.read(key.fd)
        if sum(map(len, self.texts.values())) > self.limits.output:
            return self.end("output")
        return not self.why

    def read(self, fd: int) -> None:
        if fd == self.handle.done:
            self.selector.unregister(fd)
            return
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError:  # the other end was reset
            data = b""
        if not data:
            self.selector.unregister(fd)
            self.talking = self.talking and fd != self.handle.link.fileno()
        elif fd in self.texts:
            self.texts[fd] += data
        else:
            self.inbox += data
            if len(self.inbox) > LARGEST + 4:
                self.end("output")

    def end(self, why: str) -> bool:
        """A limit was hit: the program is over."""
        self.why = self.why or why
        self.handle.kill()
        return False

    def ask(self, frame: bytes | None) -> bytes | None:
        """The reply to a frame; None when the program has ended or was ended. Without a frame: the next that comes by itself."""
        try:
            if frame is not None:
                self.post(len(frame).to_bytes(4, "big") + frame)
        except OSError:
            return None
        while not self.why:
            size = int.from_bytes(self.inbox[:4], "big") if len(self.inbox) >= 4 else 0
            if size > LARGEST:
                self.end("output")
            elif len(self.inbox) >= 4 + size and len(self.inbox) >= 4:
                found, self.inbox = self.inbox[4 : 4 + size], self.inbox[4 + size :]
                return found
            elif not self.talking or not self.step():
                return None
        return None

    def post(self, data: bytes) -> None:
        """Send all of it, reading what the program writes meanwhile: two that only write would wait for each other."""
        while data and not self.why:
            try:
                data = data[self.handle.link.send(data) :]
            except BlockingIOError:
                if not self.step():
                    return

    def close(self) -> Finished:
        """End it, if it has not ended."""
        if self.finished is None:
            self.handle.kill()
        return self.finish()

    def finish(self) -> Finished:
        """Wait for its end, within its time, and say what came of it."""
        if self.finished is not None:
            return self.finished
        while self.going() and self.step():
            pass
        seconds = time.monotonic() - self.began
        if self.going():
            self.handle.kill()
        ending = self.handle.wait()
        self.selector.close()
        self.handle.link.close()
        os.close(self.handle.out)
        os.close(self.handle.err)
        out, err = (text[: self.limits.output].decode("utf-8", "replace") for text in self.texts.values())
        self.finished = Finished(out, err, ending.exit, seconds, self.reason(ending))
        return self.finished

    def going(self) -> bool:
        """It has not ended, or what it wrote has not all been read."""
        return any(fd in self.selector.get_map() for fd in (*self.texts, self.handle.done))

    def reason(self, ending: Ending) -> str:
        """Why it ended, in words."""
        if self.why:
            return self.why
        if ending.memory:
            return "memory"
        if (
            ending.signal == 9 and ending.cpu >= self.limits.cpu * _MOST
        ):  # nobody else in its namespace could have ended it so
            return "CPU time"
        return f"signal {ending.signal}" if ending.signal else "ended"
