"""The ledger of a run: rollouts that are finished, on the disk before they are used, so that no kill loses or repeats one.

    ledger/<step>/<round>-<shard>     the groups of one shard, as its worker made them
    ledger/<step>/<round>-scored      the groups of all shards with their rewards (NaN where scoring failed) and the report

A step stays until a checkpoint that is kept has passed it. Its shards go once they are scored, being in the scored file too.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from posttrain.runs.checkpoint import disk_errors
from posttrain.runs.wire import Damaged, pack, unpack

FOLDER = "ledger"
SCORED = "scored"


class Ledger:
    """Records by (step, round, what); each is whole or not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int, round: int, what: int | str) -> Path:
        return self.folder / f"{step:06d}" / f"{round}-{what}"

    def write(self, step: int, round: int, what: int | str, data: bytes) -> None:
        """Write, flush, rename: after this returns neither a kill nor a power cut loses it."""
        path = self.path(step, round, what)
        temporary = path.with_name(f".tmp-{path.name}")
        with disk_errors(self.folder, len(data), temporary):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)

    def read(self, step: int, round: int, what: int | str) -> Any:
        """What was written; None where it is missing or damaged: it is made again."""
        try:
            return unpack(self.path(step, round, what).read_bytes())
        except (OSError, Damaged):
            return None

    def scored(self, step: int, round: int, value: Any, shards: int) -> None:
        """All shards of a round with their rewards; the shards alone are not needed any more."""
        self.write(step, round, SCORED, pack(value))
        for shard in range(shards):
            self.path(step, round, shard).unlink(missing_ok=True)

    def forget(self, upto: int) -> None:
        """Drop the steps up to this one: no restart asks for them again."""
        for path in self.folder.glob("[0-9]*"):
            if path.name.isdigit() and int(path.name) <= upto:
                shutil.rmtree(path, ignore_errors=True)
