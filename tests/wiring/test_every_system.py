"""Every registered method and plan has a wiring test: one that runs it by its name and looks at what happened."""

from __future__ import annotations

import re
from pathlib import Path

from posttrain.core.registry import parts
from tests.mutants import mutants

# those that have none yet; the list may only shrink


def registered() -> set[str]:
    """Methods and plans of the package that follow a paper, and the few that everything is built on."""
    return {p.name for kind in ("method", "plan") for p in parts(kind) if p.card.file.startswith("posttrain/")}


def traced() -> set[str]:
    """Names that stand in quotes in a wiring test, with or without options: "remax", "nash-md(steps=2)"."""
    text = "".join(
        f.read_text() for f in sorted(Path(__file__).parent.glob("test_*.py")) if f.name != Path(__file__).name
    )
    return set(re.findall(r"[\"']([a-z0-9]+(?:-[a-z0-9]+)*)(?=[\"'(])", text)) & registered()


def test_every_method_and_plan_is_run_and_looked_at() -> None:
    without = registered() - traced()
    assert without <= MISSING, (
        f"no wiring test in tests/wiring runs {', '.join(sorted(without - MISSING))}; see CONTRIBUTING.md"
    )
    assert registered() >= MISSING, "a name in the list is gone; take it out"


def test_every_method_and_plan_has_a_mutant_of_its_wiring() -> None:
    without = registered() - {m.of for m in mutants() if m.kind == "wiring"}
    assert without <= UNMUTATED, (
        f"no mutant in tests/mutants changes the wiring of {', '.join(sorted(without - UNMUTATED))}"
    )
