"""Mutants: small wrong changes to the code, each with the tests that must notice it. `python -m tests.mutants`; see CONTRIBUTING.md.

A list is a file tests/mutants/*.toml of

    [[mutant]]
    of = "remax"                    what is mutated: the id of a method or plan, or a part of one
    kind = "wiring"                 how parts are put together; or "formula"
    file = "posttrain/systems/policy_gradient/remax.py"
    text = "rollout=sample_and_greedy, "        occurs exactly once in the file
    becomes = ""
    tests = "tests/wiring/test_policy_gradient.py -k remax"      arguments of pytest
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
KINDS = ("wiring", "formula")


@dataclass(frozen=True)
class Mutant:
    of: str
    kind: str
    file: str
    text: str
    becomes: str
    tests: str

    @property
    def name(self) -> str:
        return f"{self.of}: {' '.join(self.text.split())[:50]} -> {' '.join(self.becomes.split())[:50]}"

    def applied(self, source: str) -> str:
        """The mutated source; the text must occur exactly once, and the change must be one."""
        if (n := source.count(self.text)) != 1 or self.text == self.becomes:
            raise ValueError(
                f"{self.name}: {self.text!r} occurs {n} times in {self.file}, expected once, with another text"
            )
        return source.replace(self.text, self.becomes)


def mutants() -> list[Mutant]:
    """Every mutant of every list."""
    return [
        Mutant(**row)
        for file in sorted(Path(__file__).parent.glob("*.toml"))
        for row in tomllib.loads(file.read_text())["mutant"]
    ]
