"""Runs for people who look for one: what each did, how far it is, how well it scored. Nothing here needs torch."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError
from posttrain.runs.lock import held
from posttrain.runs.settings import has_settings, read_config
from posttrain.runs.state import read_state

STATES = ("running", "finished", "stopped", "failed")
_SPEED = "SELECT AVG(value) FROM (SELECT value FROM times WHERE phase = ? AND name = 'tokens_per_second' ORDER BY step DESC LIMIT 20)"


@dataclass(frozen=True)
class Summary:
    """A run as one row of a table. step: how many are done; score: what before and after are; started: seconds since 1970;
    speed: tokens per second of its newest steps, None where that is not known."""

    name: str
    folder: str
    method: str
    task: str
    model: str
    seed: int
    state: str
    why: str
    phase: str
    step: int
    steps: int
    score: str
    before: float | None
    after: float | None
    started: float
    seconds: float
    speed: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def has(self, word: str) -> bool:
        """Whether a word is in its name, method, task, model or state."""
        text = f"{self.name} {self.method} {self.task} {self.model} {self.state}".lower()
        return word.lower() in text


def all_runs(folder: Path) -> list[Summary]:
    """Every run under a folder, those of sweeps too, oldest first; the folder may be a run itself."""
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}; runs are made by posttrain run, in runs/ unless --runs says otherwise"
        )
    if has_settings(folder) and (folder / "run.sqlite").exists():
        return [read_run(folder, folder.parent)]
    found = [p.parent for depth in ("*", "*/*") for p in folder.glob(f"{depth}/run.sqlite")]
    return sorted((read_run(f, folder) for f in found if has_settings(f)), key=lambda r: (r.started, r.name))


def read_run(folder: Path, root: Path) -> Summary:
    """What a run's folder says, of a run that is being written too."""
    config, state, summary = read_config(folder), read_state(folder), read_json(folder / "summary.json")
    phases, done, speed = progress(folder / "run.sqlite")
    plan = str(config.get("plan") or "")
    ended = bool(summary) and bool(phases) and all(phases.values())
    is_now = "running" if held(folder) else "finished" if ended else str(state.get("state", "stopped"))
    is_now = is_now if is_now != "running" or held(folder) else "stopped"  # killed: nobody wrote how it ended
    is_now = "stopped" if is_now == "finished" and not ended else is_now
    score = next((k.removesuffix("_after") for k in summary if k.endswith("_after") and "ungraded" not in k), "")
    return Summary(
        str(folder.relative_to(root)) if folder != root else folder.name, str(folder),
        plan or str(named(config.get("parts")) or config.get("method", "")), str(config.get("task", "")),
        str(config.get("model", "")), whole(config.get("seed")), is_now, str(state.get("why", "")),
        str(state.get("phase", "")), int(number(state.get("step")) or done), 0 if plan else whole(config.get("steps")),
        score or str(state.get("score", "")), number(summary.get(f"{score}_before", state.get("before"))),
        number(summary.get(f"{score}_after")) if ended else None,
        number(state.get("started")) or (folder / "config.json").stat().st_mtime,
        number(state.get("seconds")) or number(summary.get("seconds")) or 0.0, number(speed),
    )  # fmt: skip


def named(parts: Any) -> Any:
    """The name of a method that was given in Python; a damaged file may hold anything."""
    return parts.get("name") if isinstance(parts, dict) else None


def whole(x: Any) -> int:
    return int(number(x) or 0)


def number(x: Any) -> float | None:
    """A number that can be drawn; what a damaged file or a run that diverged has in its place is None."""
    known = isinstance(x, int | float) and abs(x) < 1e300
    return float(x) if known and math.isfinite(x) else None


def progress(database: Path) -> tuple[dict[str, bool], int, float | None]:
    """(phase -> whether it has ended, steps that the last one has done, its tokens per second), whatever version wrote them."""
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            phases = {
                phase: bool(done) for phase, done in db.execute("SELECT phase, finished FROM phases ORDER BY place")
            }
            last = list(phases)[-1:]
            row = db.execute("SELECT MAX(step) FROM metrics WHERE phase = ?", last).fetchone() if last else None
            pace = db.execute(_SPEED, last).fetchone()[0] if last else None
            return phases, row[0] + 1 if row and isinstance(row[0], int) else 0, pace
    except sqlite3.Error:
        return {}, 0, None


def read_json(file: Path) -> dict[str, Any]:
    """A small JSON file; empty where there is none, or it is damaged."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
