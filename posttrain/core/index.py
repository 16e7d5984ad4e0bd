"""Facts about every part without importing it: posttrain/index.json, written by `make index` and tested against the code.

`find`, `list`, completion and the head of `show` answer from here in a fraction of a second and without torch. A row:
name, stage, id, title, paper, paper_title, family, base, file, module, idea, doc, parameters (as text), laws, reads, aliases,
parts (of a method or plan), derived and learns (tests that stand behind it). Beside the rows: the claims with their attempts,
what was measured with real models, tasks, models, and every module that was read.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent
INDEX = PACKAGE / "index.json"
KNOWN = PACKAGE / "known.json"
Row = dict[str, Any]
_NOTHING: dict[str, Any] = {"parts": {}, "claims": {}, "real": {}, "tasks": [], "models": [], "modules": []}


@cache
def index() -> dict[str, Any]:
    """The whole index; an empty one where there is none, so that it can be made."""
    return _NOTHING | json.loads(INDEX.read_text()) if INDEX.is_file() else _NOTHING


@cache
def known() -> list[Row]:
    """Published systems by name, here or not: id, name, aliases, paper, title, family, near (the closest one here)."""
    found: list[Row] = json.loads(KNOWN.read_text())
    return found


def rows(*stages: str) -> list[Row]:
    """The rows of these stages (of all when none is named), in the order of the loop."""
    return [r for r in index()["parts"].values() if not stages or r["stage"] in stages]


def row(stage: str, name: str) -> Row | None:
    """One row, by stage and folded name."""
    found: Row | None = index()["parts"].get(f"{stage}/{name}")
    return found


def module_of(stage: str, name: str) -> str:
    """The module that registers a part; "" where the index does not know the part."""
    found = row(stage, name)
    return found["module"] if found else ""


def row_of(card: Any) -> Row:
    """The row of a part: the index's, or for a part that is not in it what its card says, without evidence."""
    found = row(card.stage, card.name)
    return found if found and found["file"] == card.file else described(card)


def described(card: Any) -> Row:
    """What a card says, as a row; the rest of the row is empty."""
    id = card.system or card.name
    listed = about(id, card.paper)
    return {
        "name": card.name, "stage": card.stage, "id": id, "title": card.title, "paper": card.paper,
        "paper_title": listed["title"], "family": family_of(card) or listed["family"] or default_family(card),
        "base": card.base, "file": card.file, "module": module_name(card.file), "idea": idea(card.doc) or card.title,
        "doc": card.doc, "parameters": {}, "laws": list(card.laws), "reads": list(card.reads),
        "aliases": listed["aliases"], "parts": [], "derived": [], "learns": [],
    }  # fmt: skip


def idea(doc: str) -> str:
    """The first paragraph, on one line."""
    return doc.strip().split("\n\n")[0].replace("\n", " ").strip()


def about(id: str, paper: str = "") -> Row:
    """What the table of published systems says of an id; of a paper alone, title and family are the part's too."""
    nothing: Row = {"title": "", "family": "", "aliases": []}
    for entry in known():
        if entry["id"] == id:
            return entry
    for entry in known():
        if paper and entry["paper"] == paper:
            return nothing | {k: entry[k] for k in ("title", "family")}
    return nothing


def family_of(card: Any) -> str:
    """posttrain/systems/policy_gradient/lite_ppo.py is of the family policy-gradient; "" for files elsewhere."""
    folders = Path(card.file).parts
    return folders[2].replace("_", "-") if folders[:2] == ("posttrain", "systems") and len(folders) > 3 else ""


def default_family(card: Any) -> str:
    """Methods of the package that are no published system are the base of others; a user's own have no family."""
    return "base" if card.stage in ("method", "plan") and card.file.startswith("posttrain/") else ""


def module_name(file: str) -> str:
    """posttrain/systems/policy_gradient/cispo.py -> posttrain.systems.policy_gradient.cispo; "" for a file outside the package."""
    return file.removesuffix(".py").replace("/", ".") if file.startswith("posttrain/") else ""
