"""The seccomp filter of a program: an allow list as a small BPF program, assembled by hand.

What is not on the list answers ENOSYS, as a kernel without it would, so that libraries fall back to what is there. Threads
are allowed. New processes and other programs are only where a cgroup bounds them (`fork`).

The Python packages for this wrap libseccomp.so, which pip does not install; the instructions needed here are five.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator
from functools import cache

from posttrain.core.errors import UserError
from posttrain.sandbox.syscalls import NUMBERS, RULED

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in struct seccomp_data: low words of the arguments
ALLOW, KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000  # system calls of the x32 kind have this bit

_CLONE_THREAD = 0x00010000
_NAMESPACES = 0x00000080 | 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_AF_UNIX = 1
_STREAMS = (1, 1 | 0x80000, 1 | 0x800, 1 | 0x80800)  # SOCK_STREAM with and without SOCK_CLOEXEC and SOCK_NONBLOCK
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX
_PRCTLS = (15, 16)  # the name of a thread: set, get

Instruction = tuple[int, int, int, int]  # code, steps to skip if true, if false, operand


def error(number: int) -> int:
    """The action that answers a call with an error number."""
    return _ERROR | number


def supported(machine: str = "") -> str:
    """The kind of processor, if its system calls are known here."""
    machine = machine or platform.machine()
    if machine not in NUMBERS:
        raise UserError(f"the sandbox knows the system calls of {' and '.join(NUMBERS)}, and this machine is {machine}")
    return machine


@cache
def program(fork: bool = False, machine: str = "") -> bytes:
    """The filter as bytes: an array of struct sock_filter, as bwrap --seccomp and the kernel read it."""
    machine = supported(machine)
    return b"".join(struct.pack("HBBI", *step) for step in instructions(machine, fork))


def instructions(machine: str, fork: bool) -> Iterator[Instruction]:
    """Another architecture kills, then one pair of steps per call."""
    numbers = NUMBERS[machine]
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, _ARCHITECTURES[machine]
    yield _RETURN, 0, 0, KILL
    yield _LOAD, 0, 0, _NUMBER
    yield _AT_LEAST, 0, 1, _X32
    yield _RETURN, 0, 0, error(errno.ENOSYS)
    for name, number in numbers.items():
        rule = rules(name, fork) if name in RULED else [(_RETURN, 0, 0, ALLOW)]
        yield _EQUAL, 0, len(rule), number
        yield from rule
    yield _RETURN, 0, 0, error(errno.ENOSYS)


def rules(name: str, fork: bool) -> list[Instruction]:
    """What becomes of a call that depends on its arguments, or on what the program may do."""
    if name == "clone" and fork:
        return [(_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NAMESPACES), *_returns(errno.EPERM), (_RETURN, 0, 0, ALLOW)]
    if name == "clone":  # a thread lives in its process's namespaces; flags with a namespace in them are no thread's
        return [
            (_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NAMESPACES), *_returns(errno.EPERM),
            (_ANY_BIT, 1, 0, _CLONE_THREAD), *_returns(errno.EAGAIN), (_RETURN, 0, 0, ALLOW),
        ]  # fmt: skip
    if name in ("fork", "vfork"):
        return [(_RETURN, 0, 0, ALLOW if fork else error(errno.EAGAIN))]
    if name == "execve":
        return [(_RETURN, 0, 0, ALLOW if fork else error(errno.EPERM))]
    if (
        name == "socketpair"
    ):  # asyncio wakes itself with one; a datagram socket could be left by its pair and get a name that others reach
        refused = [(_LOAD, 0, 0, _FIRST), (_EQUAL, 1, 0, _AF_UNIX), *_returns(errno.EAFNOSUPPORT)]
        return [*refused, *_one_of(_STREAMS, _SECOND, errno.ESOCKTNOSUPPORT)]
    if name == "ioctl":
        return _one_of(_IOCTLS, _SECOND, errno.ENOTTY)
    if name == "prctl":
        return _one_of(_PRCTLS, _FIRST, errno.EINVAL)
    told = {"socket": errno.EACCES, "execveat": errno.EPERM, "clone3": errno.ENOSYS}  # glibc: then with clone
    return _returns(told.get(name, errno.ENOTSUP))


def _returns(number: int) -> list[Instruction]:
    return [(_RETURN, 0, 0, error(number))]


def _one_of(values: tuple[int, ...], argument: int, otherwise: int) -> list[Instruction]:
    last = len(values)
    tests = [(_EQUAL, last - i, 0, value) for i, value in enumerate(values)]
    return [(_LOAD, 0, 0, argument), *tests, *_returns(otherwise), (_RETURN, 0, 0, ALLOW)]
