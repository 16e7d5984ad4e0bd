"""Every registered method and plan has a wiring test, which runs it by its name and looks at what happened, and a derived formula."""

from __future__ import annotations

import re
from pathlib import Path

from posttrain.core.registry import parts
from posttrain.view.methods_page import systems
from tests.mutants import mutants


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
    without = sorted(registered() - traced())
    assert not without, f"no wiring test in tests/wiring runs {', '.join(without)}; see CONTRIBUTING.md"


def test_every_method_and_plan_has_a_mutant_of_its_wiring() -> None:
    without = sorted(registered() - {m.of for m in mutants() if m.kind == "wiring"})
    assert not without, f"no mutant in tests/mutants changes the wiring of {', '.join(without)}"


def test_every_system_with_a_paper_has_a_formula_that_a_test_derives() -> None:
    without = sorted(r["name"] for r in systems() if r["paper"] and not r["derived"])
    told = ", ".join(without)
    assert not without, (
        f"no test declares the formula of {told}, or of a part of theirs that computes; see CONTRIBUTING.md"
    )
