"""One run as a whole: settings, phases, events, held-out points, warnings, what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posttrain.page.held_out import held_out
from posttrain.page.rollouts import written
from posttrain.page.series import Phase, finite, names, phases
from posttrain.runs.monitors import Finding
from posttrain.runs.reader import Reader
from posttrain.runs.reading import Summary, read_json
from posttrain.runs.settings import read_config
from posttrain.runs.unscored import unscored
from posttrain.runs.warnings import findings

_EVENTS = 500  # newest events at most


def about(reader: Reader, run: Summary) -> dict[str, Any]:
    """What the page of a run opens with; curves and answers are asked for apart."""
    folder, there = Path(run.folder), phases(reader)
    config = read_config(folder)
    problems = config.get("eval_problems")
    return {
        "run": listed(run),
        "settings": flat(config),
        "phases": [asdict(p) | {"weights": {k: finite(v) for k, v in reader.weights(p.name).items()}} for p in there],
        "metrics": names(reader),
        "events": events(reader, there),
        "held_out": held_out(
            reader, folder, problems if isinstance(problems, int) else 0, there, (run.score, run.before)
        ),
        "warnings": warned(reader, there),
        "unscored": unscored(reader, [p.name for p in there]),
        "summary": {k: v for k, v in read_json(folder / "summary.json").items() if isinstance(v, int | float | str)},
        "notes": {k: v for k, v in read_json(folder / "notes.json").items() if isinstance(v, int | float | str)},
        "checkpoints": sorted(p.name for p in folder.glob("checkpoints/*-*") if not p.name.startswith(".")),
        "stored": stored(reader, there),
    }


def listed(run: Summary) -> dict[str, Any]:
    """A run as a row; where its folder lies is nobody's business."""
    out = {k: v for k, v in run.to_dict().items() if k != "folder"}
    return out | {k: finite(out[k]) for k in ("before", "after", "seconds", "speed")}


def flat(settings: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by dotted names, lists as text."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            out |= flat(value, f"{name}.")
        elif isinstance(value, list):
            out[name] = ", ".join(map(part, value))
        else:
            out[name] = value
    return out


def part(value: Any) -> str:
    """{"part": "ppo", "low": 0.2} as ppo(low=0.2)."""
    if not isinstance(value, dict) or "part" not in value:
        return str(value)
    inside = ", ".join(f"{k}={v}" for k, v in value.items() if k != "part")
    return f"{value['part']}({inside})" if inside else str(value["part"])


def events(reader: Reader, there: list[Phase]) -> list[dict[str, Any]]:
    """The newest events and the checkpoints that are kept, each with its place on the axis of steps."""
    start = {p.name: p.start for p in there}
    rows = reader.db.execute("SELECT * FROM events ORDER BY id DESC LIMIT ?", (_EVENTS,)).fetchall()
    found = [
        (r["phase"], r["step"], r["kind"], r["message"]) for r in reversed(rows) if isinstance(r["step"], int)
    ] + saved(reader.path.parent, start)
    return [
        {"phase": phase, "step": step + 1, "x": start.get(phase, 0) + step + 1, "kind": kind, "message": message}
        for phase, step, kind, message in found
    ]


def saved(folder: Path, known: Iterable[str]) -> list[tuple[str, int, str, str]]:
    """The checkpoints that are on the disk, as events: <phase>-<step, counted from 0>."""
    names = sorted(p.name.rpartition("-") for p in folder.glob("checkpoints/*-*"))
    return [
        (phase, int(step), "checkpoint", f"on the disk as {phase}-{step}")
        for phase, _, step in names
        if phase in known and re.fullmatch("[0-9]{1,9}", step)
    ]


def warned(reader: Reader, there: list[Phase] | None = None) -> list[dict[str, Any]]:
    """What the monitors have found, phase by phase; one that they cannot read says so, and the rest of the page stands."""
    out = []
    for phase in there or phases(reader):
        try:
            out += [told(f, phase) for f in findings(reader, phase.name)]
        except (ValueError, TypeError, ArithmeticError) as error:
            out.append(told(Finding("unreadable", f"the monitors cannot read {phase.name}: {error}", 0, 0), phase))
    return out


def told(found: Finding, phase: Phase) -> dict[str, Any]:
    """A warning with its place on the axis of steps, counted from 1."""
    out = asdict(found) | {"phase": phase.name, "first": found.first + 1, "last": found.last + 1}
    return out | {"x": [phase.start + found.first + 1, phase.start + found.last + 1]}


def stored(reader: Reader, there: list[Phase]) -> list[dict[str, Any]]:
    """By phase: the first and last step with answers, how many were made at the last, whether they are those of a data set."""
    out = []
    for phase in there if reader.version > 1 else ():
        ends = "(SELECT MIN(step) FROM rollouts WHERE phase = ?1), (SELECT MAX(step) FROM rollouts WHERE phase = ?1)"
        first, last = reader.db.execute(f"SELECT {ends}", (phase.name,)).fetchone()
        if first is not None:
            query = "SELECT made FROM steps WHERE phase = ? AND step = ?"
            made = reader.db.execute(query, (phase.name, last)).fetchone()
            out.append(
                {
                    "phase": phase.name,
                    "first": first + 1,
                    "last": last + 1,
                    "made": made[0] if made else 0,
                    "written": written(reader, phase.name),
                }
            )
    return out
