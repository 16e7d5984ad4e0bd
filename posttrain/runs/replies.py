"""What environments replied, on the disk before it is used: a run that was killed inside a step samples its turns again, which are the same,
and asks no tool, server or game twice. Time-outs and failures are replies too.

    replies/<phase>-<step>    records: name of the turn (16 bytes), length (4 bytes), the reply (runs/wire.py, with its hash)

A step's file goes once no checkpoint that is kept comes before it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, BinaryIO

from posttrain.core.protocols import Environment, Step
from posttrain.core.ranks import ranks
from posttrain.rewards.runtime.score import say_once
from posttrain.rollouts.sources import LocalSource
from posttrain.runs.checkpoint import disk_errors, listing
from posttrain.runs.wire import Damaged, Unsendable, pack, unpack

FOLDER = "replies"
_NAME, _SIZE = 16, 4


class KeptReplies:
    """The replies of a phase of a run."""

    def __init__(self, run: Path, phase: str) -> None:
        self.folder, self.phase = run / FOLDER, phase
        self.step = -1
        self.found: dict[bytes, Step] = {}  # of that step, from before this process
        self.file: BinaryIO | None = None  # of that step, once something was added

    def path(self, step: int) -> Path:
        return self.folder / f"{self.phase}-{step:06d}"

    def get(self, step: int, name: bytes) -> Step | None:
        if step != self.step:
            self.close()
            self.step, self.found = step, self._read(self.path(step))
        return self.found.get(name)

    def put(self, step: int, name: bytes, reply: Step) -> None:
        """No kill loses it once this has returned; `flush`: nor does a power cut."""
        self.get(step, name)
        try:
            data = pack(reply)
        except Unsendable as error:
            return say_once(
                f"a reply of the environment holds {error}, which cannot be kept: after a restart it is asked again"
            )
        with disk_errors(self.folder, len(data)):
            if self.file is None:
                self.folder.mkdir(exist_ok=True)
                self.file = open(self.path(step), "ab", buffering=0)  # noqa: SIM115 - open for a step
            record = name + len(data).to_bytes(_SIZE, "big") + data
            if self.file.write(record) < len(record):  # without a buffer a full disk takes what it has room for
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        if self.file is not None:
            with disk_errors(self.folder, 0):
                os.fsync(self.file.fileno())

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def _read(self, path: Path) -> dict[bytes, Step]:
        """The records of a step; what a kill left half written is cut off, so that the next ones follow whole ones."""
        if not path.exists():
            return {}
        data, at, found = path.read_bytes(), 0, dict[bytes, Step]()
        while at < len(data):
            begin = at + _NAME + _SIZE
            end = begin + int.from_bytes(data[at + _NAME : begin], "big")
            try:
                found[data[at : at + _NAME]] = unpack(data[begin:end])
            except Damaged:
                os.truncate(path, at)
                break
            at = end
        return found

    def on_checkpoint(self, loop: Any, step: int) -> None:
        """Steps that every kept checkpoint has passed are not made again."""
        passed = min((at for at, _ in listing(loop.run.checkpoints, loop.phase)), default=-1)
        for path in self.folder.glob(f"{self.phase}-*"):
            number = path.name.removeprefix(f"{self.phase}-")
            if number.isdigit() and int(number) <= passed:
                path.unlink(missing_ok=True)


def kept_by(source: Any, env: Environment, run: Any, phase: str) -> list[KeptReplies]:
    """Have a source keep replies in the run's folder, where it plays episodes step by step in this process; a callback of the loop."""
    folder = getattr(run, "folder", None)
    if type(source) is not LocalSource or not env.opens or folder is None or not ranks().lead:
        return []
    source.replies = KeptReplies(Path(folder), phase)
    return [source.replies]
