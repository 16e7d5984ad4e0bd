"""What a paper says, and the smallest experiment that could refute it here.

A claim file registers by existing: `claim(Claim(id="dpo", ...), __file__)`. Margins are stated before the recorded seeds
are run; what was tuned, and on which other seeds, is told in `tried`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from posttrain.core.errors import UserError, unknown
from posttrain.core.registry import _PARTS, Card, Part, _relative, fold

Arm = Callable[[int], Mapping[str, float]]  # seed -> metrics


@dataclass(frozen=True)
class Check:
    """`metric` is higher in one arm than in another (or than a number) by more than `margin`; lower with lower=True.

    A margin below 0 asks for "not worse by more than that".
    """

    name: str
    metric: str
    better: str
    worse: str | float
    margin: float = 0.0
    lower: bool = False


@dataclass(frozen=True)
class Claim:
    """What the paper says, the arms of the experiment, and the checks that must all pass."""

    id: str
    title: str
    paper: str
    says: str
    experiment: str
    arms: Mapping[str, Arm]
    checks: tuple[Check, ...]
    seeds: tuple[int, ...] = tuple(range(8))
    family: str = ""
    tried: str = ""
    budget_seconds: float = 120.0

    def __post_init__(self) -> None:
        for check in self.checks:
            for arm in (check.better, check.worse):
                if isinstance(arm, str) and arm not in self.arms:
                    raise unknown("arm", arm, self.arms)
        if not self.checks:
            raise UserError(f"the claim {self.id!r} checks nothing, so it cannot fail; give it at least one Check")
        if len(self.seeds) < 3:
            raise UserError(f"the claim {self.id!r} has {len(self.seeds)} seeds; 3 is the least that shows any spread")


def claim(c: Claim, file: str) -> Claim:
    """Register a claim under its id."""
    doc = f"{c.title}: {c.says}\n\n{c.experiment}"
    card = Card(fold(c.id), "claim", c.title, c.paper, system=c.id, file=_relative(file), doc=doc)
    _PARTS["claim"][card.name] = Part(partial(_same, c), card)
    return c


@cache
def discover_claims() -> None:
    """Import every file of the families' folders, so that each registers its claim."""
    for module in pkgutil.walk_packages([str(Path(__file__).parent.parent)], "claims."):
        if module.name.split(".")[1] not in ("machinery", "worlds"):
            importlib.import_module(module.name)


def find_claim(id: str) -> Claim:
    """The claim of that id; unknown ones fail with the nearest match."""
    discover_claims()
    if fold(id) not in _PARTS["claim"]:
        raise unknown("claim", id, _PARTS["claim"])
    found: Claim = _PARTS["claim"][fold(id)].fn()
    return found


def _same(c: Claim) -> Claim:
    return c


def claims(family: str | None = None) -> list[Claim]:
    """Every claim, or those of one family."""
    discover_claims()
    every: list[Claim] = [part.fn() for _, part in sorted(_PARTS["claim"].items())]
    if family is None:
        return every
    found = [c for c in every if c.family == family]
    if not found:
        raise unknown("family of claims", family, {c.family for c in every})
    return found


def file_of(c: Claim) -> str:
    """The claim's file, relative to the project."""
    return _PARTS["claim"][fold(c.id)].card.file
