"""A mistake that all processes of a run meet is told once: by the first. The others ask what it told before they say anything.

The place where it leaves word is a folder that `posttrain run --gpus N` makes, or the store that torchrun's own agent keeps.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = "POSTTRAIN_TOLD"  # the variable with the folder
_WAIT = 5.0  # seconds that the first process may take to meet the same mistake
_KEY = "posttrain/told"


def one_of_several() -> bool:
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and "RANK" in os.environ


def first() -> bool:
    return os.environ["RANK"] == "0"


def leave_word(sentence: str) -> None:
    """What the first process has told."""
    if folder := os.environ.get(FOLDER):
        path = Path(folder) / "told"
        path.with_suffix(".tmp").write_text(sentence)
        path.with_suffix(".tmp").replace(path)
    elif (store := _store()) is not None:
        with suppress(Exception):  # the agent may be gone
            store.set(_KEY, sentence)


def heard(sentence: str, wait: float = _WAIT) -> bool:
    """Whether the first process has told the same. Details in brackets may differ: who was waited for, an address."""
    told = _from_folder(os.environ[FOLDER], wait) if FOLDER in os.environ else _from_store(wait)
    return told is not None and _gist(told) == _gist(sentence)


def _gist(sentence: str) -> str:
    return sentence.partition(" (")[0]


def _from_folder(folder: str, wait: float) -> str | None:
    path, end = Path(folder) / "told", time.monotonic() + wait
    while time.monotonic() < end:
        with suppress(OSError):
            return path.read_text()
        time.sleep(0.02)
    return None


def _from_store(wait: float) -> str | None:
    from datetime import timedelta

    store = _store()
    if store is None:
        return None
    try:
        store.wait([_KEY], timedelta(seconds=wait))
        found: bytes = store.get(_KEY)
    except Exception:  # not told in time, or the agent is gone
        return None
    return found.decode(errors="replace")


def _store() -> Any:
    """The store of torchrun's agent; None where processes were started in another way."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return TCPStore(*where, is_master=False, timeout=timedelta(seconds=_WAIT))
    except Exception:
        return None
