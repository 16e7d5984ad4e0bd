"""What a paper says, and the smallest experiment that could refute it here.

A claim file registers by existing: `claim(Claim(id="dpo", ...), __file__)`. Margins are stated before the recorded seeds
are run; what was tuned, and on which other seeds, is told in `tried`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.core.registry import _relative, fold

Arm = Callable[[int], Mapping[str, float]]  # seed -> metrics
LEVELS = {
    "table": "a lookup table, or a toy of as few numbers",
    "pocket": "the language model that comes with the package",
    "real": "a published language model",
}


@dataclass(frozen=True)
class Check:
    """`metric` is higher in one arm than in another (or than a number) by more than `margin`; lower with lower=True.

    A margin below 0 asks for "not worse by more than that". exact: the figure has no luck in it (an equilibrium, a count fixed by
    construction), so every seed must lie above the margin, and no interval is drawn; at the level `table` only.
    """

    name: str
    metric: str
    better: str
    worse: str | float
    margin: float = 0.0
    lower: bool = False
    exact: bool = False

    def asked(self) -> tuple[Any, ...]:
        """What is compared and with which margin, without words: numbers as records round them."""
        worse = self.worse if isinstance(self.worse, str) else float(f"{self.worse:.4g}")
        return self.metric, self.better, worse, float(f"{self.margin:.6g}"), self.lower


@dataclass(frozen=True)
class Shared:
    """What arms must have spent alike, seed by seed: a key of BUDGETS. within: by how much of the larger they may differ (answers
    differ in length, so tokens never agree to the last one). arms: those that share it; empty: all."""

    what: str
    within: float = 0.0
    arms: tuple[str, ...] = ()


BUDGETS = {
    "prompts": "different training prompts that were seen",
    "samples": "answers sampled in training",
    "tokens": "tokens of those answers",
    "written": "rows of demonstrations, pairs or logs that were learned from, repeats counted",
    "judge_calls": "questions that plans asked their judge",
    "updates": "updates of the policy's weights",
}


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
    departures: str = ""  # of a paper that is tested here and not built: what it does and this does not
    budget_seconds: float = 120.0
    level: str = "table"  # what is trained: a key of LEVELS
    shares: tuple[Shared, ...] = ()  # what makes the comparison fair; a record fails where it does not hold

    def __post_init__(self) -> None:
        for check in self.checks:
            for arm in (check.better, check.worse):
                if isinstance(arm, str) and arm not in self.arms:
                    raise unknown("arm", arm, self.arms)
        if not self.checks:
            raise UserError(f"the claim {self.id!r} checks nothing, so it cannot fail; give it at least one Check")
        if len(self.seeds) < 3:
            raise UserError(f"the claim {self.id!r} has {len(self.seeds)} seeds; 3 is the least that shows any spread")
        if self.level not in LEVELS:
            raise unknown("level of evidence", self.level, LEVELS)
        if self.level != "table" and any(check.exact for check in self.checks):
            raise UserError(f"the claim {self.id!r} calls a figure of a sampled model exact; only tables have such")
        for shared in self.shares:
            if shared.what not in BUDGETS:
                raise unknown("budget", shared.what, BUDGETS)
            for arm in shared.arms:
                if arm not in self.arms:
                    raise unknown("arm", arm, self.arms)


@dataclass(frozen=True)
class Filed:
    """A claim and its file, relative to the project."""

    claim: Claim
    file: str


_CLAIMS: dict[str, Filed] = {}  # by id; claims are evidence for parts, not parts: the registry does not know them


def claim(c: Claim, file: str) -> Claim:
    """Register a claim under its id."""
    filed = Filed(c, _relative(file))
    old = _CLAIMS.get(fold(c.id))
    if old and old.file != filed.file:
        raise UserError(f"two claims have the id {c.id!r}: {old.file} and {filed.file}")
    _CLAIMS[fold(c.id)] = filed
    return c


@cache
def discover_claims() -> None:
    """Import every file of the families' folders, so that each registers its claim."""
    for module in pkgutil.walk_packages([str(Path(__file__).parent.parent)], "claims."):
        if module.name.split(".")[1] not in ("machinery", "worlds"):
            importlib.import_module(module.name)


def registered(id: str) -> bool:
    """Whether the file of that claim has been imported."""
    return fold(id) in _CLAIMS


def find_claim(id: str) -> Claim:
    """The claim of that id; unknown ones fail with the nearest match."""
    if registered(id):
        return _CLAIMS[fold(id)].claim
    discover_claims()
    if fold(id) not in _CLAIMS:
        raise unknown("claim", id, _CLAIMS)
    return _CLAIMS[fold(id)].claim


def claims(family: str | None = None) -> list[Claim]:
    """Every claim, or those of one family."""
    discover_claims()
    every = [filed.claim for _, filed in sorted(_CLAIMS.items())]
    if family is None:
        return every
    found = [c for c in every if c.family == family]
    if not found:
        raise unknown("family of claims", family, {c.family for c in every})
    return found


def file_of(c: Claim) -> str:
    """The claim's file, relative to the project."""
    return _CLAIMS[fold(c.id)].file
