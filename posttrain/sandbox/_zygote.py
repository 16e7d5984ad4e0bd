"""A warm interpreter in the sandbox that forks itself into fresh namespaces for each program. Sent in after _inside.py.

The zygote has no seccomp filter, since it makes namespaces, and runs no program. Each program is a fork that begins as the first
process of new user, mount, process and IPC namespaces. Its descriptors come from outside with the order and all others are
closed, so that it can reach neither the zygote nor another program.
"""

from __future__ import annotations

import _ctypes
import contextlib
import gc
import json
import os
import select
import signal
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # in the sandbox these stand above
    from posttrain.sandbox._confine import _C, c
    from posttrain.sandbox._inside import play

# what programs import most often is paid for once
import atexit, bisect, collections, copy, datetime, decimal, fractions, functools, heapq, io, itertools, math, operator, random, re, resource, statistics, string, threading, typing  # noqa: E401, E402, F401, I001  # fmt: skip

_NEW = 0x10000000 | 0x00020000 | 0x20000000 | 0x08000000  # user, mount, process, IPC namespaces
_SET_PDEATHSIG = 1
_UID, _GID = os.getuid(), os.getgid()
_NEVER = float("inf")
_LINK = 3  # the descriptor of the frames, in the program


class Whole(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """A number of C."""

    _type_ = "i"


class Function(_ctypes.CFuncPtr):
    """A function of C or of the interpreter, called as one of the interpreter's own: with its lock held."""

    _flags_ = 1 | 4 | 8  # as C calls, with the lock, and errno is kept
    _restype_ = Whole


def function(name: str) -> Function:
    return Function(_ctypes.dlsym(_C, name))


def fork(number: int) -> int:
    """As os.fork, but the child is the first process of new namespaces, which os.fork cannot ask for; `number` is that of clone."""
    function("PyOS_BeforeFork")()
    child: int = function("syscall")(number, _NEW | signal.SIGCHLD, 0, 0, 0, 0)
    failed = _ctypes.get_errno() if child < 0 else 0
    function("PyOS_AfterFork_Child" if child == 0 else "PyOS_AfterFork_Parent")()
    if failed:
        raise OSError(failed, f"no new namespaces: {os.strerror(failed)}")
    return child


class Keeper:
    """One program, seen from the zygote."""

    def __init__(self, child: int, status: int, seconds: float) -> None:
        self.child, self.status, self.due = child, status, time.monotonic() + seconds
        self.done = os.pidfd_open(child)

    def kill(self) -> None:
        os.kill(self.child, signal.SIGKILL)  # its number is its own until it is waited for
        self.due = _NEVER

    def tell(self) -> None:
        """How it ended, to whoever gave the order."""
        _, code, used = os.wait4(self.child, 0)
        ending = [os.waitstatus_to_exitcode(code), used.ru_utime + used.ru_stime]
        with contextlib.suppress(OSError):  # nobody wants to know any more
            os.write(self.status, json.dumps(ending).encode())
        os.close(self.status)
        os.close(self.done)


class Kept(dict[int, Keeper]):
    """The programs that run, by either of their descriptors; and what there is to wait for."""

    def __init__(self, control: int) -> None:
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)

    def ready(self) -> set[int]:
        """The descriptors that have something to tell, once there are any or a program's time is up."""
        due = min((one.due for one in self.values()), default=_NEVER)
        wait = None if due == _NEVER else max(0.0, due - time.monotonic()) * 1000
        return {fd for fd, _ in self.poll.poll(wait)}

    def take(self, one: Keeper) -> None:
        for fd in (one.done, one.status):
            self[fd] = one
            self.poll.register(fd, select.POLLIN)

    def drop(self, fd: int) -> None:
        if self.pop(fd, None):
            self.poll.unregister(fd)

    def look(self, fd: int) -> None:
        """A program has ended, or shall."""
        one = self[fd]
        if fd == one.done:
            self.drop(one.done)
            self.drop(one.status)
            one.tell()
        else:
            self.drop(fd)
            one.kill()


def serve(control: int, number: int) -> None:
    """Take orders until whoever gives them is gone; in a program's process this returns, its descriptor being _LINK."""
    sock = socket.socket(fileno=control)
    sock.send(b"ready")
    gc.freeze()  # what is here by now is never copied for being counted
    kept = Kept(control)
    while True:
        ready = kept.ready()
        if control in ready:  # before any descriptor is closed: a new one never has the number of one in `ready`
            order, given, _, _ = socket.recv_fds(sock, 1 << 12, 5)
            if not order:
                os._exit(0)
            child = begun(number, given)
            if child == 0:
                sock.detach()  # it is closed by now
                return
            if child is not None:
                kept.take(Keeper(child, given[4], json.loads(order)))
        for fd in ready & kept.keys():
            if fd in kept:
                kept.look(fd)
        for one in {one for one in kept.values() if one.due <= time.monotonic()}:
            one.kill()


def begun(number: int, given: list[int]) -> int | None:
    """The process of a new program, 0 in that process itself; None where there can be none, which is told on its stderr."""
    try:
        child = fork(number)
    except OSError as error:
        os.write(given[2], str(error).encode())
        for fd in given:
            os.close(fd)
        return None
    if child:
        for fd in given[:4]:
            os.close(fd)
        return child
    try:
        enter()
        become(given)
    except BaseException as error:
        os.write(given[2], f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    return 0


def enter() -> None:
    """In new namespaces the user stays who it is."""
    for file, text in (("setgroups", "deny"), ("uid_map", f"{_UID} {_UID} 1"), ("gid_map", f"{_GID} {_GID} 1")):
        fd = os.open(f"/proc/self/{file}", os.O_WRONLY)
        os.write(fd, text.encode())
        os.close(fd)


def become(given: list[int]) -> None:
    """The program's process: it ends with the zygote, and has its own descriptors only. The last steps are in _confine.py."""
    c("prctl", _SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    high = [os.dup(fd) for fd in given[:4]]  # away from the numbers they shall have
    for number, fd in enumerate(high):
        os.dup2(fd, number, inheritable=True)
    os.closerange(_LINK + 1, 4096)
    os.setsid()


def main(control: int, number: int) -> None:
    """Serve; where serve returns, this process is a program's."""
    serve(control, number)
    play(_LINK)
