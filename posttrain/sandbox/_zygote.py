"""A warm interpreter in the sandbox that forks itself into fresh namespaces for each program. Sent in after _inside.py.

The zygote has no seccomp filter, since it makes namespaces, and runs no program. For each program it forks a keeper, which
enters new user, mount, process and IPC namespaces and forks the program as their first process. The program's descriptors
come from outside with the order and all others are closed, so that it can reach neither the zygote nor another program.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # in the sandbox these stand above
    from posttrain.sandbox._confine import c
    from posttrain.sandbox._inside import begin, perform

# what programs import most often is paid for once
import atexit, bisect, collections, copy, datetime, decimal, fractions, functools, heapq, io, itertools, math, operator, random, re, resource, statistics, string, typing  # noqa: E401, E402, F401, I001  # fmt: skip

_NEW = 0x10000000 | 0x00020000 | 0x20000000 | 0x08000000  # user, mount, process, IPC namespaces
_SET_PDEATHSIG = 1
_LINK = 3  # the descriptor of the frames, in the program


def serve(control: int) -> None:
    """Take orders until whoever gives them is gone; in a program's process this returns, its descriptor being _LINK."""
    with socket.socket(fileno=control) as sock:
        sock.send(b"ready")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        gc.freeze()  # what is here by now is never copied for being counted
        while True:
            order, given, _, _ = socket.recv_fds(sock, 1 << 12, 5)
            if not order:
                os._exit(0)
            if os.fork() == 0:
                break
            for fd in given:
                os.close(fd)
    keep(json.loads(order), given)


def keep(seconds: float, given: list[int]) -> None:
    """Enter new namespaces and fork; the parent waits for the program, or for the word that it shall end, and tells how it ended."""
    status = given[4]
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        enter()
        child = os.fork()
        if child == 0:
            return become(given)
    except BaseException as error:
        os.write(given[2], f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    for fd in (0, 1, 2, *given[:4]):
        os.close(fd)
    watch(child, status, seconds)


def enter() -> None:
    """New namespaces for this process and those it will start; the user stays who it is."""
    uid, gid = os.getuid(), os.getgid()
    c("unshare", _NEW)
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = os.open(f"/proc/self/{file}", os.O_WRONLY)
        os.write(fd, text.encode())
        os.close(fd)


def watch(child: int, status: int, seconds: float) -> None:
    """Wait for the child's end; end it when time is up or the other side has hung up."""
    poll = select.poll()
    poll.register(os.pidfd_open(child), select.POLLIN)
    poll.register(status, select.POLLIN)
    poll.poll(seconds * 1000)
    os.kill(child, signal.SIGKILL)  # it has ended, or shall
    _, code, used = os.wait4(child, 0)
    ending = [os.waitstatus_to_exitcode(code), used.ru_utime + used.ru_stime]
    os.write(status, json.dumps(ending).encode())
    os._exit(0)


def become(given: list[int]) -> None:
    """The program's process: it ends with its keeper, and has its own descriptors only. The last steps are in _confine.py."""
    c("prctl", _SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    high = [os.dup(fd) for fd in given[:4]]  # away from the numbers they shall have
    for number, fd in enumerate(high):
        os.dup2(fd, number, inheritable=True)
    os.closerange(_LINK + 1, 4096)
    os.setsid()


def main(control: int) -> None:
    """Serve; where serve returns, this process is a program's, and ends as an interpreter would, without taking itself apart."""
    serve(control)
    code = 0
    try:
        perform(_LINK, begin(_LINK))
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
        if code == 1 and leave.code != 1:
            print(leave.code, file=sys.stderr)
    except EOFError:  # whoever talked with the program is gone
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed or replaced by the program
            code = code or 120
    os._exit(code & 0xFF)
