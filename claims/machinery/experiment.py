"""Run a claim: every arm on every seed, then the verdict of each check against its margin."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from claims.machinery.claim import Arm, Check, Claim
from posttrain.core.errors import UserError
from posttrain.evals.intervals import differences, interval
from posttrain.runs.in_memory import one_thread

Values = dict[str, dict[str, list[float]]]  # arm -> metric -> one value per seed


@dataclass(frozen=True)
class Finding:
    """How one check came out: shown when the lower end of the interval lies above the margin."""

    name: str
    metric: str
    difference: float
    low: float
    high: float
    margin: float
    shown: bool


@dataclass(frozen=True)
class Result:
    """Every number an experiment gave, and what follows from them."""

    findings: list[Finding]
    values: Values
    seeds: list[int]
    seconds: float

    @property
    def shown(self) -> bool:
        return all(f.shown for f in self.findings)


def experiment(c: Claim, seeds: Sequence[int] | None = None, tell: Callable[[str], None] | None = None) -> Result:
    """All arms on all seeds (the claim's own unless given), and the findings."""
    seeds = list(c.seeds if seeds is None else seeds)
    began = time.perf_counter()
    with one_thread():
        values = run_arms(c.arms, seeds, tell)
    seconds = time.perf_counter() - began
    return Result([find_out(check, values) for check in c.checks], values, seeds, seconds)


def run_arms(arms: Mapping[str, Arm], seeds: Sequence[int], tell: Callable[[str], None] | None = None) -> Values:
    """Seed by seed, so that what the arms of a seed share can be made once."""
    values: Values = {name: {} for name in arms}
    for seed in seeds:
        for name, arm in arms.items():
            if tell:
                tell(f"seed {seed}: {name}")
            for metric, x in arm(seed).items():
                values[name].setdefault(metric, []).append(float(x))
    for name, metrics in values.items():
        for metric, xs in metrics.items():
            if len(xs) != len(seeds) or not all(math.isfinite(x) for x in xs):
                raise UserError(f"{metric} of the arm {name!r} is not one finite number a seed: {xs}")
    return values


def find_out(check: Check, values: Values) -> Finding:
    """Difference, its interval over seeds, and whether that lies above the margin."""
    better_S = values[check.better][check.metric]
    if isinstance(check.worse, str):
        worse_S = values[check.worse][check.metric]
    else:
        worse_S = [float(check.worse)] * len(better_S)
    over_S = differences(worse_S, better_S) if check.lower else differences(better_S, worse_S)
    low, high = interval(over_S)
    return Finding(check.name, check.metric, sum(over_S) / len(over_S), low, high, check.margin, low > check.margin)
