"""The evidence for a part: never a level without the file that shows it.

formula  tests that hold it to values derived by hand      posttrain/evidence.json, written by tests/scan_evidence.py
         (a method, or each method of a plan: every part that computes has such tests)
learns   tests in which a tiny policy improves with it     the same
claim    the paper's claim as a small experiment           claims/results/<id>.json, through claims.machinery.evidence
scale    a run with a real model on a GPU                  claims/scale/<id>.json
"""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from posttrain.core.registry import Card, find

PACKAGE = Path(__file__).parent.parent
TESTS = PACKAGE / "evidence.json"
SCALE = PACKAGE.parent / "claims" / "scale"
_COMPUTES = (
    "shaping",
    "select",
    "advantage",
    "loss",
    "aggregate",
    "terms",
)  # fields of a method with a formula in them


def system_id(card: Card) -> str:
    """The id that claims and results go by: the published system's, or the part's own name."""
    return card.system or card.name


def evidence(card: Card) -> dict[str, Any]:
    """{"formula": bool, "learns": bool, "claim": "shown" | "not shown" | "stale" | "none", "scale": bool}."""
    found = files(card)
    level = import_module("claims.machinery.evidence").claim_level(system_id(card))
    return {k: level if k == "claim" else bool(found[k]) for k in ("formula", "learns", "claim", "scale")}


def files(card: Card) -> dict[str, list[str]]:
    """What each level rests on: test ids, and result files relative to the project."""
    tests = tested().get(f"{card.stage}/{card.name}", {})
    out = {level: list(tests.get(level, [])) for level in ("formula", "learns")}
    if card.stage == "method":
        out["formula"] = _formulas_of_parts([find(card.name, "method").fn()])
    elif card.stage == "plan":
        out["formula"] = out["formula"] or _formulas_of_parts(_methods_of(find(card.name, "plan").fn().parts))
    id = system_id(card)
    for level, path in (
        ("claim", PACKAGE.parent / "claims" / "results" / f"{id}.json"),
        ("scale", SCALE / f"{id}.json"),
    ):
        out[level] = [str(path.relative_to(PACKAGE.parent))] if path.is_file() else []
    return out


def _formulas_of_parts(methods: list[Any]) -> list[str]:
    """One test for each part of the methods that computes; nothing if one of them has none, or there is no method."""
    parts = [p for m in methods for f in _COMPUTES for p in m.parts()[f]]
    tests = [tested().get(f"{p.card.stage}/{p.name}", {}).get("formula", []) for p in parts]
    return list(dict.fromkeys(t[0] for t in tests)) if all(tests) else []


def _methods_of(parts: tuple[Any, ...]) -> list[Any]:
    """The methods of a plan's phases, in its cycles too."""
    inner = [m for part in parts for m in _methods_of(getattr(part, "parts", ()))]
    return inner + [part.method for part in parts if hasattr(part, "method")]


def in_words(levels: dict[str, Any]) -> str:
    """formula, learns, claim shown; `-` where there is nothing yet."""
    told = [k for k in ("formula", "learns") if levels[k]]
    if levels["claim"] != "none":
        told.append(f"claim {levels['claim']}")
    if levels["scale"]:
        told.append("scale")
    return ", ".join(told) or "-"


@cache
def tested() -> dict[str, dict[str, list[str]]]:
    """stage/name -> level -> test ids; nothing where the table was not generated."""
    return json.loads(TESTS.read_text()) if TESTS.is_file() else {}
