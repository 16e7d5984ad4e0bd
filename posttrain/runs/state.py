"""How far a run is and how it ended, in a small file that `posttrain runs` reads; nothing of the training depends on it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from posttrain.core.pause import Paused

_FILE = "state.json"
_BLOCK = 1024  # bytes
_FOLDERS = ("checkpoints", "best", "artifacts", "tracked", "profile", "ledger", "versions")
_FILES = (
    "run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "notes.json", "summary.json", "held_out.json", "machine.json", _FILE, "config.toml",
    "config.json",
)  # fmt: skip
_KINDS: dict[str, Any] = {
    "state": str, "why": str, "phase": str, "score": str, "step": int, "started": int | float, "seconds": int | float, "before": int | float,
}  # fmt: skip


class State:
    """state.json of a run that is being written: state, started, seconds (of all sessions), phase, step, why."""

    def __init__(self, folder: Path) -> None:
        self.path, self.began = folder / _FILE, time.time()
        self.known = read_state(folder)
        self.known.setdefault("started", self.began)
        self.earlier = float(self.known.get("seconds", 0.0))
        self.now(state="running", why="", pid=os.getpid())

    def now(self, **more: Any) -> None:
        """Write what is known, without waiting for the disk: a damaged file costs a line in a table.

        In place, padded to a whole block: some file systems flush a file that was emptied and written anew when it is closed, and
        that waits for a checkpoint that is on its way to the same disk.
        """
        self.known |= more | {"updated": time.time(), "seconds": round(self.earlier + time.time() - self.began, 1)}
        text = json.dumps(self.known).encode()
        with suppress(OSError):
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                size = os.fstat(file).st_size
                os.pwrite(file, text.ljust(max(size, -(-len(text) // _BLOCK) * _BLOCK) - 1) + b"\n", 0)
            finally:
                os.close(file)

    def end(self, error: BaseException | None) -> None:
        """finished, stopped (a signal, a time limit, Ctrl-C) or failed, and why."""
        stopped = isinstance(error, Paused | KeyboardInterrupt)
        ended = "finished" if error is None else "stopped" if stopped else "failed"
        why = "" if error is None else "Ctrl-C" if isinstance(error, KeyboardInterrupt) else str(error).strip()
        self.now(state=ended, why=why.split("\n")[0][:300])


def read_state(folder: Path) -> dict[str, Any]:
    """What state.json says; empty where there is none, or it is damaged. A value of another kind is left out."""
    try:
        found = json.loads((folder / _FILE).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, _KINDS.get(k, object))} if isinstance(found, dict) else {}


def stopped(loop: Any) -> dict[str, Any]:
    """What a checkpoint says of a run that a callback has ended after it: why, and of how many steps."""
    return {"stopped": {"why": loop.stopping, "steps": loop.config.steps}} if loop.stopping else {}


def still_stopped(state: dict[str, Any], steps: int, label: Path) -> str:
    """Why a run that a callback has ended stays ended; empty where it was not, or more steps are asked for now."""
    found = state.get("stopped") or {}
    if not found or steps > found["steps"]:
        return ""
    told = "%s was ended early (%s), and stays so; more --steps go on with it, --fresh starts over"
    logging.getLogger("posttrain").warning(told, label, found["why"])
    return str(found["why"])


def reopen(folder: Path) -> None:
    """No phase is at its end any more: the run goes on for more steps. Only the writer of the folder may call it."""
    if (folder / "run.sqlite").exists():
        db = sqlite3.connect(folder / "run.sqlite", timeout=30)
        with closing(db), db:
            db.execute("UPDATE phases SET finished = 0")


def wipe(folder: Path) -> None:
    """Delete what a run has written, and nothing else; a folder that is a link stays, and what is in it goes. What cannot be deleted
    is an error: a checkpoint that stays would be gone on with."""
    from posttrain.runs.checkpoint import disk_errors  # with torch, which readers of this file do without

    with disk_errors(folder, 0):
        for name in _FOLDERS:
            for path in (folder / name).iterdir() if (folder / name).is_dir() else ():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        for name in _FILES:  # the settings last: a kill on the way leaves a run that says what it was
            (folder / name).unlink(missing_ok=True)
