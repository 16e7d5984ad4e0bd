"""A run is a folder: the settings, the database, checkpoints, artifacts. Killed at any moment, it resumes bit for bit.

runs/<name>/: config.json, run.sqlite, checkpoints/<phase>-<step>/, artifacts/, notes.json, summary.json
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import weakref
from pathlib import Path
from typing import Any, Self

from posttrain.core.config import differences
from posttrain.core.errors import UserError
from posttrain.core.machine import free_memory
from posttrain.core.protocols import Policy
from posttrain.core.types import Group
from posttrain.runs.background import Background
from posttrain.runs.checkpoint import Checkpoint, detach, disk_errors, newest, prune, sweep, write, write_atomic
from posttrain.runs.learner_tables import learner_tables, load_learners
from posttrain.runs.store import Store
from posttrain.runs.tables import HostCopy, size_of

_OWN = ("run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "notes.json", "summary.json", "config.json")
_SHARE = 0.4  # of the free memory that a copy of the state may take; a larger state is written before training goes on
_held: set[str] = set()  # folders this process writes: a POSIX lock does not keep a process from itself


class Run:
    """The folder of a run, held by one writing process at a time; `Run.open` reads without holding it."""

    store: Store
    writer: Background
    _written: list[int]

    def __init__(self, folder: Path | str, config: dict[str, Any], resume: bool = True, fresh: bool = False) -> None:
        self.folder, self.config = Path(folder), json.loads(json.dumps(config))
        self.log_rollouts = int(self.config.get("log_rollouts", -1))
        self.writer, self.copy, self._written = Background(), HostCopy(), []
        with disk_errors(self.folder, 0):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._release = weakref.finalize(self, _unlock, *_lock(self.folder))
        try:
            self._begin(fresh or not resume)
        except BaseException:
            self._release()
            raise

    def _begin(self, fresh: bool) -> None:
        if fresh:
            self._wipe()
        path = self.folder / "config.json"
        if path.exists():
            self._same_config(read_config(self.folder))
        elif (self.folder / "run.sqlite").exists() or self._any_checkpoint():
            raise UserError(f"{self.folder} has no config.json; use another --name, or --fresh to start over")
        else:
            write_atomic(path, json.dumps(self.config, indent=2) + "\n")
        self.checkpoints.mkdir(exist_ok=True)
        sweep(self.checkpoints)
        self.store = Store(self.folder / "run.sqlite")

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        """For readers: nothing is created, locked or changed, and a live run may be read."""
        run = cls.__new__(cls)
        run.folder, run.config = Path(folder), read_config(Path(folder))
        run.store = Store(run.folder / "run.sqlite", readonly=True)
        run._release = lambda: None  # type: ignore[assignment]
        run.writer, run._written = Background(), []
        return run

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def close(self) -> None:
        """Whatever happened, a checkpoint that is being written gets written."""
        try:
            self.writer.wait()
        finally:
            if hasattr(self, "store"):
                self.store.close()
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- what the loop calls

    def restore(self, loop: Any) -> int:
        """The newest good checkpoint of the phase into the loop; the first step to do, 0 without a checkpoint.

        Rows written at or after that step are deleted, because the step is done again.
        """
        check_name(loop.phase)
        self.log_rollouts = loop.config.log_rollouts
        ck = newest(self.checkpoints, loop.phase)
        first = 0 if ck is None else ck.step + 1
        if ck is not None:
            if ck.state["config"] != self.fingerprint:
                raise UserError(
                    f"checkpoint {ck.phase}-{ck.step:06d} is of other settings; use another --name, or --fresh"
                )
            load_learners(loop.learners, ck.tables, ck.state["learners"])
            for name, part in loop.stateful().items():
                part.load_state_dict(ck.state["parts"][name])
            prune(self.checkpoints, ck.phase, ck.step, loop.config.keep_checkpoints)  # a kill may have come before it
        self.store.forget(loop.phase, first)
        self.store.begin(loop.phase, loop.role, answers=getattr(loop.learner.policy, "score", None) is None)
        return first

    def log(self, phase: str, step: int, metrics: dict[str, float], groups: list[Group], seconds: float) -> None:
        """Metrics and rollouts of a step, in one transaction."""
        self.store.log(phase, step, metrics, groups, seconds, self.log_rollouts)

    def save(self, loop: Any, step: int, last: bool = False) -> None:
        """A checkpoint after `step`: copied now, written while training goes on (the last one at once); older ones go only
        once it is complete. One is written at a time, so memory holds one copy."""
        self.writer.wait()
        self.store.sync()
        parts = {name: part.state_dict() for name, part in loop.stateful().items()}
        learners = {role: learner.state() for role, learner in loop.learners.items()}
        state = {"learners": learners, "parts": parts, "config": self.fingerprint}
        tables, rounded = learner_tables(loop.learners)
        state, tables = detach(state, tables)  # new lists and dicts: what the parts hold goes on changing
        beside = not last and size_of(tables) < _SHARE * (free_memory() or 0)
        ck = Checkpoint(loop.phase, step, self.copy(tables) if beside else tables, state, rounded)
        keep = loop.config.keep_checkpoints

        def work() -> None:
            write(self.checkpoints, ck)
            prune(self.checkpoints, ck.phase, ck.step, keep)
            self._written.append(step)

        self.writer.start(work) if beside else work()

    def written(self) -> list[int]:
        """Steps whose checkpoints became complete since the last time this was asked; an error of writing comes out here."""
        self.writer.check()
        done, self._written = self._written, []
        return done

    def event(self, phase: str, step: int, kind: str, message: str) -> None:
        self.store.event(phase, step, kind, message)

    # ---- phases

    def finished(self, phase: str) -> bool:
        return self.store.finished(phase)

    def finish(self, phase: str) -> None:
        """The phase and all it leaves behind are complete; a restart will not do it again."""
        self.writer.wait()
        self.store.finish(check_name(phase))

    def load_weights(self, phase: str, policy: Policy) -> None:
        """The weights a phase ended with, into a policy; a critic that has been dropped since is left out."""
        self.writer.wait()
        ck = newest(self.checkpoints, phase)
        if ck is None:
            raise UserError(f"{self.folder} has no checkpoint of phase {phase!r}; start over with --fresh")
        weights = ck.tables["weights"]
        if getattr(policy, "critic", None) is None:
            weights = {k: x for k, x in weights.items() if not k.startswith("critic.")}
        missing, unexpected = policy.load_state_dict(weights, strict=False)
        tied = [m for m in missing if not m.endswith("lm_head.weight")]
        if tied or unexpected:
            raise UserError(f"phase {phase!r} trained another model: missing {tied[:3]}, unexpected {unexpected[:3]}")

    # ---- small files

    def artifact(self, name: str) -> Path:
        """Where something a phase makes for later ones lies; a bare name is a JSONL table."""
        return self.folder / "artifacts" / (check_name(name) if "." in name else f"{check_name(name)}.jsonl")

    def write_artifact(self, name: str, rows: list[dict[str, Any]]) -> Path:
        path = self.artifact(name)
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
        return path

    def read_artifact(self, name: str) -> list[dict[str, Any]]:
        path = self.artifact(name)
        if not path.exists():
            there = sorted(p.name for p in path.parent.glob("*")) if path.parent.exists() else []
            raise UserError(f"no phase has written {path.name} yet; there are: {', '.join(there) or 'no artifacts'}")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_atomic(self.folder / "summary.json", json.dumps(_strict(summary), indent=2) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        path = self.folder / "summary.json"
        return json.loads(path.read_text()) if path.exists() else None

    def write_notes(self, notes: dict[str, Any]) -> None:
        """What phases reported so far, so that a restart knows it too."""
        write_atomic(self.folder / "notes.json", json.dumps(notes) + "\n")

    def read_notes(self) -> dict[str, Any]:
        path = self.folder / "notes.json"
        return json.loads(path.read_text()) if path.exists() else {}

    # ---- inside

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()[:16]

    def _same_config(self, old: dict[str, Any]) -> None:
        changed = differences(old, self.config)
        if changed:
            what = "; ".join(f"{k} was {a}, is now {b}" for k, a, b in changed)
            raise UserError(
                f"{self.folder} holds a run with other settings ({what}); use another --name, or --fresh to start over"
            )

    def _any_checkpoint(self) -> bool:
        return self.checkpoints.exists() and any(self.checkpoints.iterdir())

    def _wipe(self) -> None:
        for name in ("checkpoints", "artifacts"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in _OWN:  # the settings last: a kill on the way leaves a run that says what it was
            (self.folder / name).unlink(missing_ok=True)


def read_config(folder: Path) -> dict[str, Any]:
    """The settings a run was started with."""
    try:
        settings: dict[str, Any] = json.loads((folder / "config.json").read_text())
        return settings
    except FileNotFoundError:
        raise UserError(f"no run in {folder}: there is no config.json") from None
    except ValueError:
        raise UserError(
            f"{folder / 'config.json'} is not JSON; start over with --fresh, or use another --name"
        ) from None


def check_name(name: str) -> str:
    """Names of phases and artifacts become file names."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name):
        raise UserError(f"{name!r} cannot be a file name here; use letters, digits, and . _ + -")
    return name


def _strict(x: Any) -> Any:
    """Strict JSON has no NaN: null."""
    if isinstance(x, dict):
        return {k: _strict(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_strict(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def _lock(folder: Path) -> tuple[int, str]:
    """Hold the folder. A POSIX lock ends with its process, even killed, and no forked child inherits it."""
    key = str(folder.resolve())
    if key in _held:
        raise UserError(f"{folder} is already open for writing in this process; close that run first")
    fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise UserError(
            f"{folder} is being written by another process (id {owner}); wait for it, or use another --name"
        ) from None
    os.ftruncate(fd, 0)
    os.write(fd, str(os.getpid()).encode())
    _held.add(key)
    return fd, key


def _unlock(fd: int, key: str) -> None:
    if key in _held:
        _held.discard(key)
        os.close(fd)
