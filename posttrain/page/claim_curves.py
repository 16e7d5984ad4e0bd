"""The curves of the runs behind a claim, by arm: of every seed's last phase the mean, the least and the most at each step.

They are kept beside the claims (`claims/<family>/curves/<id>-<attempt>.json`), so a checkout has them and an installed package does not.
"""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from typing import Any

from posttrain.page.series import finite

ROOT = Path(__file__).parents[2]
METRICS = ("reward", "accuracy", "length", "kl")
_MOST_BYTES = 8 << 20
_ARMS = 6


def curves(claim: dict[str, Any] | None) -> dict[str, Any] | None:
    """{"attempt", "metrics": {name: [{"label", "seeds", "x", "mean", "low", "high"}]}} of the newest attempt that has them."""
    file = Path(str((claim or {}).get("file", "")))
    for attempt in sorted((a["attempt"] for a in (claim or {}).get("attempts", [])), reverse=True):
        found = _read(ROOT / file.parent / "curves" / f"{file.stem}-{attempt}.json")
        if found:
            return {"attempt": attempt, "metrics": by_metric(found)}
    return None


def by_metric(runs: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """runs: "arm, seed 200" -> run -> phase -> metric -> numbers."""
    arms: dict[str, list[dict[str, Any]]] = {}
    for name, phases in runs.items():
        arms.setdefault(name.rpartition(", seed ")[0] or name, []).append(_last(phases))
    out = {
        metric: [_arm(label, [run.get(metric) for run in some]) for label, some in list(arms.items())[:_ARMS]]
        for metric in METRICS
    }
    return {metric: kept for metric, some in out.items() if (kept := [arm for arm in some if arm["x"]])}


def _last(tree: Any) -> dict[str, Any]:
    """The last phase of the last run: what the claim is about stands at its end."""
    while isinstance(tree, dict) and tree and isinstance(next(reversed(tree.values())), dict):
        tree = next(reversed(tree.values()))
    return tree if isinstance(tree, dict) else {}


def _arm(label: str, seeds: list[Any]) -> dict[str, Any]:
    known = [s for s in seeds if isinstance(s, list) and s]
    steps = [[v for v in step if isinstance(v, int | float) and finite(v) is not None] for step in zip_longest(*known)]
    drawn = [(k + 1, sum(s) / len(s), min(s), max(s)) for k, s in enumerate(steps) if s]
    x, mean, low, high = (list(column) for column in zip(*drawn, strict=True)) if drawn else ([], [], [], [])
    return {
        "label": label, "seeds": len(known), "x": x, "mean": [finite(v) for v in mean],
        "low": [finite(v) for v in low], "high": [finite(v) for v in high],
    }  # fmt: skip


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text()) if file.stat().st_size <= _MOST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
