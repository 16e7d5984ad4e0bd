"""The field: every system of the package by family, with the evidence for it, from the index."""

from __future__ import annotations

from typing import Any

from posttrain.core.errors import unknown
from posttrain.core.evidence import evidence
from posttrain.core.index import Row, index, rows
from posttrain.page.claim_curves import curves

_ROW = ("name", "id", "title", "paper", "paper_title", "family", "stage", "idea")


def systems() -> list[dict[str, Any]]:
    """Methods and plans with their evidence, in the order of the index."""
    return [{k: r[k] for k in _ROW} | {"evidence": evidence(r)} for r in rows("method", "plan")]


def system(name: str) -> dict[str, Any]:
    """One of them: what it says, its parts with their formulas, the attempts at its claim."""
    found = next((r for r in rows("method", "plan") if name in (r["name"], r["id"])), None)
    if found is None:
        raise unknown("system", name, [r["name"] for r in rows("method", "plan")])
    claim, real = index()["claims"].get(found["id"]), index()["real"].get(found["id"])
    parts = [p for p in map(_part, found["parts"]) if p is not None]
    return {k: found[k] for k in (*_ROW, "doc", "file", "aliases")} | {
        "evidence": evidence(found), "parts": parts, "claim": claim, "real": real, "parameters": found["parameters"],
        "outline": found.get("outline", []), "curves": curves(claim),
    }  # fmt: skip


def _part(used: dict[str, str]) -> Row | None:
    """A part as the method uses it: in which field, with which parameters, its formula."""
    found = index()["parts"].get(used["part"])
    kept = ("name", "stage", "title", "paper", "doc", "file", "derived")
    return {k: found[k] for k in kept} | {"field": used["field"], "as": used["as"]} if found else None
