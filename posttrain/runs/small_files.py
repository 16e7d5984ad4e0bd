"""The small files of a run's folder: what phases leave for later ones, what they reported, the summary."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.json_file import read_object, strict
from posttrain.runs.checkpoint import write_atomic
from posttrain.runs.settings import check_name

DONE = "done"  # in notes.json: the part whose work was written last


class SmallFiles:
    """artifacts/, notes.json, summary.json, held_out.json."""

    folder: Path

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
        write_atomic(self.folder / "summary.json", json.dumps(strict(summary), indent=2) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        return read_object(self.folder / "summary.json")

    def write_held_out(self, before: Any, after: Any) -> None:
        """The score of every held-out problem before and after, so that runs can be compared problem by problem."""
        rows = {"name": after.name, "prompts": [r.prompt.id for r in after.rollouts]}
        worth = {
            k: [math.nan if r.failed else r.total for r in s.rollouts]
            for k, s in (("before", before), ("after", after))
        }
        write_atomic(self.folder / "held_out.json", json.dumps(strict(rows | worth)) + "\n")

    def write_notes(self, notes: dict[str, Any], done: str = "") -> None:
        """What phases reported so far, so that a restart knows it too; done: the part whose work they hold, to be finished next."""
        write_atomic(self.folder / "notes.json", json.dumps(notes | ({DONE: done} if done else {})) + "\n")

    def read_notes(self) -> dict[str, Any]:
        return {k: v for k, v in (read_object(self.folder / "notes.json") or {}).items() if k != DONE}
