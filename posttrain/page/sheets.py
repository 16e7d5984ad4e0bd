"""Audits of rewards and sheets of data, as the page shows them: tables and sentences of what the files say, and nothing else."""

from __future__ import annotations

from typing import Any

from posttrain.page.folder import Folder
from posttrain.page.series import finite
from posttrain.runs import sheets as files

_TEXT = 2000  # characters
_ROWS = 200


def sheets(folder: Folder) -> list[dict[str, Any]]:
    """The newest first; `told` are sentences, `wrong` those that need a look."""
    return [_head(s) | (_audit if s["kind"] == "audit" else _data)(s["found"]) for s in files.sheets(folder.above)]


def _head(sheet: dict[str, Any]) -> dict[str, Any]:
    return {k: sheet[k][:_TEXT] for k in ("name", "kind", "title", "task", "date", "command")}


def _audit(found: dict[str, Any]) -> dict[str, Any]:
    rows = [r for r in _list(found.get("rows")) if isinstance(r, dict)]
    table = [
        {k: str(r.get(k, ""))[:_TEXT] for k in ("family", "kind", "verdict", "why")}
        | {k: _number(r.get(k)) for k in ("n", "failed", "mean", "min", "max")}
        for r in rows
    ]
    return {"families": table, "wrong": _texts(found.get("findings")), "told": _texts(found.get("notes"))}


def _data(found: dict[str, Any]) -> dict[str, Any]:
    lengths = [
        {"of": f"{what}, {unit}"[:_TEXT], "quantiles": {str(k)[:40]: _number(v) for k, v in _items(q)}}
        for unit, some in _items(found.get("lengths"))
        for what, q in _items(some)
    ]
    bins = [
        {"of": f"{what}, {unit}"[:_TEXT], "bins": [[_number(x) for x in b[:3]] for b in _list(some) if _triple(b)]}
        for unit, whats in _items(found.get("bins"))
        for what, some in _items(whats)
    ]
    return {
        "told": _texts(found.get("understood")),
        "wrong": _texts(found.get("findings")),
        "lengths": lengths,
        "bins": bins,
    }


def _triple(b: Any) -> bool:
    return isinstance(b, list) and len(b) == 3 and all(_number(x) is not None for x in b)


def _list(x: Any) -> list[Any]:
    return x[:_ROWS] if isinstance(x, list) else []


def _items(x: Any) -> list[tuple[str, Any]]:
    return list(x.items())[:_ROWS] if isinstance(x, dict) else []


def _texts(x: Any) -> list[str]:
    return [str(t)[:_TEXT] for t in _list(x)]


def _number(x: Any) -> Any:
    return finite(x) if isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < 1e300 else None
