"""Sheets: what `posttrain audit --save` found in a reward and `posttrain data --save` in a data set, as small files beside the runs.

`runs/sheets/<kind>-<title>.json`: kind (audit or data), title, task, date, command, found. The same question asked again replaces its sheet.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError

FOLDER = "sheets"
KINDS = ("audit", "data")
_MOST_BYTES = 1 << 20
_MOST = 100  # sheets that are read, the newest


def save(runs: str | Path, kind: str, title: str, task: str, command: str, found: dict[str, Any]) -> Path:
    """Write a sheet; returns its file."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]
    path = Path(runs) / FOLDER / f"{kind}-{slug}-{hashlib.sha256(title.encode()).hexdigest()[:6]}.json"
    sheet = {"kind": kind, "title": title, "task": task, "date": time.strftime("%Y-%m-%d %H:%M"), "command": command}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(sheet | {"found": found}) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; give another folder with --runs") from None
    return path


def sheets(runs: Path) -> list[dict[str, Any]]:
    """Every sheet that can be read, the newest first; what is no sheet is passed over."""
    files = [(p.stat().st_mtime, p) for p in (runs / FOLDER).glob("*.json") if p.is_file()]
    newest = [p for _, p in sorted(files, reverse=True)][:_MOST]
    return [sheet for p in newest if (sheet := _read(p)) is not None]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("kind") not in KINDS or not isinstance(found.get("found"), dict):
        return None
    head = {k: str(found.get(k, "")) for k in ("kind", "title", "task", "date", "command")}
    return head | {"name": path.stem, "found": found["found"]}
