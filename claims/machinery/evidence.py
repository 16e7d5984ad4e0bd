"""What the recorded experiments say about a system: shown, not shown, stale or none. Imports no torch."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from claims.machinery.fingerprint import ROOT, fingerprint

RESULTS = Path(__file__).parent.parent / "results"


def claim_level(id: str) -> str:
    """`shown`, `not shown`, `stale` (the code it ran has changed since) or `none`."""
    made = read_record(id)
    return "none" if made is None else _level(made["verdict"], made["file"], made["fingerprint"])


@cache
def _level(verdict: str, file: str, mark: str) -> str:
    return verdict if (ROOT / file).is_file() and fingerprint(file) == mark else "stale"


def read_record(id: str) -> dict[str, Any] | None:
    """The recorded result of a claim, or None where there is none."""
    path = RESULTS / f"{id}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def recorded() -> list[str]:
    """Ids of all claims with a result."""
    made = (json.loads(p.read_text()) for p in sorted(RESULTS.glob("*.json")))
    return [m["id"] for m in made if "verdict" in m]
