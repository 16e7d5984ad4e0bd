"""What every arm of a seed makes alike, such as the start they share, is made by whichever comes first and copied by the others.

It lies beside the outcomes of the claim (WORK/<claim>/<fingerprint>/shared/<key>), under a hash of everything that it follows from: the
settings, the seed, and the contents of the files that they name. Runs repeat to the bit, so nobody can tell a copy from a run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError

_SHELF: list[Path | None] = [None]  # of the arms that run in this process


@contextmanager
def kept_in(folder: Path | None) -> Iterator[None]:
    """Where the arms inside keep what they share; None: each makes its own."""
    before, _SHELF[0] = _SHELF[0], folder
    try:
        yield
    finally:
        _SHELF[0] = before


def shelf() -> Path | None:
    return _SHELF[0]


def key_of(settings: Mapping[str, Any], room: Path) -> str:
    """A hash of settings, in which files and folders of the arm's own room stand for what is in them."""
    try:
        told = json.dumps(settings, sort_keys=True)
    except TypeError as error:
        raise UserError(f"a run that arms share must be told in plain settings: {error}") from None
    digest = hashlib.sha256(told.replace(str(room), "").encode())
    for file in sorted(p for entry in room.iterdir() if str(entry) in told for p in (entry, *entry.rglob("*"))):
        if file.is_file():
            digest.update(f"{file.relative_to(room)}:{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:24]


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder as `make` leaves it, whole or not there at all; other processes that want it wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file, or with the process
        if not folder.is_dir():
            part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            make(part)
            os.replace(part, folder)
    return folder
