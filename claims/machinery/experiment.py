"""Run a claim: every arm on every seed, what each spent, then the verdict of each check against its margin."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from claims.machinery.claim import Arm, Claim, Shared
from claims.machinery.verdict import Finding, Values, find_out
from posttrain.core.errors import UserError
from posttrain.runs.in_memory import one_thread

__all__ = ["Finding", "Outcome", "Result", "Values", "experiment", "find_out", "gathered", "run_arms", "unequal"]


@dataclass(frozen=True)
class Outcome:
    """One arm on one seed: its metrics, what it spent (keys of BUDGETS), the curves of its runs, and the seconds it took."""

    arm: str
    seed: int
    metrics: dict[str, float]
    spent: dict[str, float] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    machine: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """Every number an experiment gave, and what follows from them."""

    findings: list[Finding]
    values: Values
    seeds: list[int]
    seconds: float  # of all arms and seeds, one after the other
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def shown(self) -> bool:
        return all(f.shown for f in self.findings)


def experiment(c: Claim, seeds: Sequence[int] | None = None, tell: Callable[[str], None] | None = None) -> Result:
    """All arms on all seeds (the claim's own unless given) one after the other, and the findings."""
    seeds = list(c.seeds if seeds is None else seeds)
    with one_thread():
        return gathered(c, seeds, run_arms(c.arms, seeds, tell))


def run_arms(arms: Mapping[str, Arm], seeds: Sequence[int], tell: Callable[[str], None] | None = None) -> list[Outcome]:
    """Seed by seed, so that what the arms of a seed share can be made once."""
    out = []
    for seed in seeds:
        for name in arms:
            if tell:
                tell(f"seed {seed}: {name}")
            out.append(run_one(arms, name, seed))
    return out


def run_one(arms: Mapping[str, Arm], name: str, seed: int) -> Outcome:
    """One arm on one seed."""
    began = time.perf_counter()
    made = arms[name](seed)
    metrics = {k: float(x) for k, x in made.items()}
    for metric, x in metrics.items():
        if not math.isfinite(x):
            raise UserError(f"{metric} of the arm {name!r} is not a finite number on seed {seed}: {x}")
    spent, curves = getattr(made, "spent", {}), getattr(made, "curves", {})
    return Outcome(name, seed, metrics, dict(spent), dict(curves), round(time.perf_counter() - began, 2))


def gathered(c: Claim, seeds: Sequence[int], outcomes: Iterable[Outcome]) -> Result:
    """The outcomes of all arms and seeds as one result; arms that did not spend alike what the claim says they share are an error."""
    by = {(o.arm, o.seed): o for o in outcomes}
    missing = [(arm, seed) for arm in c.arms for seed in seeds if (arm, seed) not in by]
    if missing:
        raise UserError(f"{len(missing)} of {len(c.arms) * len(seeds)} runs of {c.id} are missing: {missing[0]} ...")
    every = [by[arm, seed] for arm in c.arms for seed in seeds]
    values: Values = {arm: {} for arm in c.arms}
    for o in every:
        for metric, x in o.metrics.items():
            values[o.arm].setdefault(metric, []).append(x)
    for arm, metrics in values.items():
        for metric, xs in metrics.items():
            if len(xs) != len(seeds):
                raise UserError(f"{metric} of the arm {arm!r} is not one finite number a seed: {xs}")
    if wrong := unequal(c.shares, c.arms, every):
        raise UserError(f"the claim {c.id} compares unequal arms: {'; '.join(wrong[:3])}")
    seconds = sum(o.seconds for o in every)
    return Result([find_out(check, values) for check in c.checks], values, list(seeds), seconds, every)


def unequal(shares: Sequence[Shared], arms: Iterable[str], outcomes: Iterable[Outcome]) -> list[str]:
    """A sentence for every seed on which arms did not spend alike what they share."""
    out, every = [], list(outcomes)
    for shared in shares:
        mine = shared.arms or tuple(arms)
        for seed in dict.fromkeys(o.seed for o in every):
            spent = {o.arm: o.spent.get(shared.what) for o in every if o.seed == seed and o.arm in mine}
            if None in spent.values():
                arm = next(a for a, x in spent.items() if x is None)
                out.append(f"the arm {arm!r} does not say how many {shared.what} it spent")
                break
            least, most = min(spent, key=lambda a: spent[a] or 0.0), max(spent, key=lambda a: spent[a] or 0.0)
            low, high = spent[least] or 0.0, spent[most] or 0.0
            if high - low > shared.within * high:
                told = f"{least!r} {low:,.0f}, {most!r} {high:,.0f}"
                out.append(f"{shared.what} of seed {seed}: {told}, allowed to differ by {shared.within:.0%}")
    return out
