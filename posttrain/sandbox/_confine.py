"""The last steps into the sandbox, which the process takes itself before it reads a program. Sent in between values.py and _inside.py.

bwrap can neither bound the number of files of a folder nor forbid to start another program, since it has to start this one.
"""

from __future__ import annotations

import _ctypes  # calls C functions; the package around it takes longer to import than most programs to run
import posix

_NOSUID_NODEV, _READ_ONLY = 2 | 4, 1
_SET_SECCOMP, _SET_NO_NEW_PRIVS = 22, 38
_C = _ctypes.dlopen(None, 2)  # type: ignore[arg-type]  # None: what is loaded already


class Address(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """Where the bytes are that it is made of, as C has it. `array` would tell, and imports `collections`."""

    _type_ = "z"


def c(name: str, *arguments: int | bytes | None) -> None:
    """Call a function of the C library; a step that fails ends the sandbox: nothing runs in half of one."""
    if _ctypes.call_cdeclfunction(_ctypes.dlsym(_C, name), arguments) != 0:
        raise OSError(f"{name} failed")


def confine(folder: str, disk: int, limits: dict[str, int], steps: bytes) -> None:
    """An own folder of bounded size and number of files, no /proc, limits, no capability, the filter."""
    c(
        "mount",
        b"tmpfs",
        folder.encode(),
        b"tmpfs",
        _NOSUID_NODEV,
        f"size={disk},nr_inodes={disk // 4096 + 8},mode=0700".encode(),
    )
    if "proc" in posix.listdir("/"):
        c("mount", b"tmpfs", b"/proc", b"tmpfs", _NOSUID_NODEV | _READ_ONLY, b"size=4096")
    posix.chdir(folder)
    limit(limits)
    c("capset", (0x20080522).to_bytes(4, "little") + bytes(4), bytes(24))
    c("prctl", _SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    program = (len(steps) // 8).to_bytes(8, "little") + bytes(Address(steps))  # struct sock_fprog
    c("prctl", _SET_SECCOMP, 2, program, 0, 0)


def limit(limits: dict[str, int]) -> None:
    """The limits of this process."""
    import resource

    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
