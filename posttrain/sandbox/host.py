"""The machine outside: which user sandboxes run as, and the tools that make them."""

from __future__ import annotations

import os
import pwd
import shutil
from functools import cache
from pathlib import Path

from posttrain.core.errors import UserError

_FIRST_UID = 60900  # where root looks for a user that nobody is


@cache
def box_uid() -> int:
    """The user under whom sandboxes run: oneself, or for root somebody who has no account."""
    if os.getuid() != 0 or _contained(Path("/proc/self/uid_map").read_text()):
        return os.getuid()
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(_FIRST_UID, 65534) if uid not in taken)


def _contained(uid_map: str) -> bool:
    """Whether this root is another user outside of its namespace, and has no user to become: `0 1000 1`."""
    lines = [tuple(map(int, line.split())) for line in uid_map.splitlines()]
    return not any(first <= _FIRST_UID < first + n for first, _, n in lines) and all(
        outer for first, outer, _ in lines if first == 0
    )


@cache
def tool(name: str) -> str:
    """The path of a program that the sandbox is made with."""
    packages = {"bwrap": "bubblewrap", "setpriv": "util-linux", "prlimit": "util-linux"}
    found = shutil.which(name)
    if found is None:
        raise UserError(
            f"programs of a model run only in a sandbox, which needs {name}, and it is not installed; type: apt-get install "
            f"{packages[name]} (or dnf, pacman, apk with the same name)"
        )
    return found
