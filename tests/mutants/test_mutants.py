"""The lists of mutants: each still applies, names tests that exist, and there are enough."""

from __future__ import annotations

import shlex

import pytest

from tests.mutants import KINDS, ROOT, Mutant, mutants


@pytest.mark.parametrize("m", mutants(), ids=lambda m: m.name)
def test_a_mutant_still_applies(m: Mutant) -> None:
    changed = m.applied((ROOT / m.file).read_text())
    if m.file.endswith(".py"):
        compile(changed, m.file, "exec")
    assert m.kind in KINDS and m.of
    assert (ROOT / shlex.split(m.tests)[0].split("::")[0]).exists()


def test_there_are_forty_of_formulas_and_no_two_alike() -> None:
    found = mutants()
    assert sum(m.kind == "formula" for m in found) >= 40
    assert len({(m.file, m.text, m.becomes) for m in found}) == len(found)


def test_a_text_that_occurs_twice_is_no_mutant() -> None:
    with pytest.raises(ValueError, match="occurs 2 times"):
        Mutant("x", "wiring", "f.py", "a", "b", "t").applied("a a")
    with pytest.raises(ValueError, match="occurs 0 times"):
        Mutant("x", "wiring", "f.py", "c", "b", "t").applied("a a")
