"""One writer per run: a lock on a file in its folder that ends with the process, even killed.

flock belongs to the open file, so a process that reads or copies its own folder keeps it (a POSIX lock would be dropped when any
descriptor of the file is closed). Forked children would keep it too, so they close their copy at once.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from posttrain.core.errors import UserError

_FILE = ".lock"
_TRIES, _PAUSE = 5, 0.04  # a reader that asks `held` has the lock for an instant
_held: dict[str, int] = {}  # folders this process writes, and the descriptors that hold them


def hold(folder: Path, shown: Path) -> tuple[int, str]:
    """Hold the folder, or say who does; `release` gives it back."""
    key = str(folder.resolve())
    if key in _held:
        raise UserError(f"{shown} is already open for writing in this process; close that run first")
    fd = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if not _taken(fd):
        owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise UserError(f"{shown} is being written by another process (id {owner}); wait for it, or use another --name")
    os.ftruncate(fd, 0)
    os.write(fd, str(os.getpid()).encode())
    _held[key] = fd
    return fd, key


def release(fd: int, key: str) -> None:
    if _held.get(key) == fd:
        del _held[key]
        os.close(fd)


def held(folder: Path) -> bool:
    """Whether a process writes the folder now; nothing is changed."""
    try:
        fd = os.open(folder / _FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


def _taken(fd: int) -> bool:
    for attempt in range(_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if attempt + 1 < _TRIES:
                time.sleep(_PAUSE)
    return False


def _let_go() -> None:
    """In a forked child: the parent's runs are not its own, and it must not keep them locked when the parent dies."""
    for fd in _held.values():
        with suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
