"""Every registered method and plan has a wiring test, which runs it by its name and looks at what happened, and a derived formula."""

from __future__ import annotations

from pathlib import Path

from posttrain.core.registry import parts
from posttrain.view.methods_page import systems
from tests.mutants import mutants
from tests.wiring.names import names_run

TESTS = """
import posttrain as pt
from tests.wiring.spies import traced

KNOWN = {"in-a-table": 1, "is-no-name": 2}
PLAN = "a-constant(steps=1)"

def helped(method, n): return traced(f"{method}(n={n})")
def again(name): return helped(name, 2)

@pytest.mark.parametrize(("n", "name"), [(1, "by-parameter"), pytest.param(2, "by-param", id="x")])
def test_one(n, name):
    traced(name), traced("by-itself"), traced(PLAN[:-1] + ")"), again("by-helpers")
    for word, told in KNOWN.items() if n else ():
        traced(f"{word}-and-more"), print("printed")
    for word in KNOWN:
        traced("of-a-part(name={word})".replace("{word}", word))
    how = {"method": "by-dict"}
    pt.run(**how), pt.run("not-a-method", method="by-keyword(steps=1)")
    with pytest.raises(ValueError):
        traced("refused")
    assert find_method("looked-up").name == "looked-up"
"""


def registered() -> set[str]:
    """Methods and plans of the package that follow a paper, and the few that everything is built on."""
    return {p.name for kind in ("method", "plan") for p in parts(kind) if p.card.file.startswith("posttrain/")}


def traced() -> set[str]:
    """Names that a wiring test runs, with or without options: "remax", "nash-md(steps=2)"."""
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    return set().union(*(names_run(f) for f in files if f.name != Path(__file__).name)) & registered()


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


def test_a_name_that_is_only_written_down_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    due = {"by-parameter", "by-param", "by-itself", "a-constant", "by-helpers", "by-dict", "by-keyword", "of-a-part"}
    assert names_run(tmp_path / "test_it.py") == due | {"in-a-table-and-more", "is-no-name-and-more"}
