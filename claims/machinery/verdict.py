"""What follows from the numbers of an experiment: the difference of each check, its interval over seeds, shown or not.

A verdict is computed whenever it is read, from the values of each arm and seed, which are what an attempt keeps. So all attempts
are held to the rule below, also those made when another was in force; what was said then stays in the record and is told beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from claims.machinery.claim import Check, Claim
from posttrain.evals.intervals import differences, interval, paired

Values = dict[str, dict[str, list[float]]]  # arm -> metric -> one value per seed
RULE = "Student t over paired seeds, 99.5%"
EXACT = "exact: every seed"
FLAT = "no spread: all seeds equal"
FIRST_RULE = "percentile bootstrap over paired seeds, 95%"  # of attempts that name none


@dataclass(frozen=True)
class Finding:
    """How one check came out: shown when the lower end of the interval lies above the margin.

    how: the rule. Exact figures are shown when every seed lies above the margin (low and high are the least and the largest);
    sampled ones that are all equal are not shown, whatever they are: nothing says how they would vary.
    """

    name: str
    metric: str
    difference: float
    low: float
    high: float
    margin: float
    shown: bool
    how: str = RULE


def find_out(check: Check, values: Values) -> Finding:
    """Difference, its interval over seeds, and whether that lies above the margin."""
    return judged(check.name, check.metric, _over(check, values), check.margin, check.exact)


def over(values: Values, metric: str, better: str, worse: str | float, lower: bool) -> list[float]:
    """By how much the better arm is ahead on each seed, in the claimed direction."""
    better_S = values[better][metric]
    worse_S = values[worse][metric] if isinstance(worse, str) else [float(worse)] * len(better_S)
    return differences(worse_S, better_S) if lower else differences(better_S, worse_S)


def judged(name: str, metric: str, over_S: Sequence[float], margin: float, exact: bool) -> Finding:
    """The rule itself."""
    mean = sum(over_S) / len(over_S)
    if exact:
        low, high = min(over_S), max(over_S)
        return Finding(name, metric, mean, low, high, margin, low > margin, EXACT)
    low, high = paired(over_S)
    if math.isnan(low):
        return Finding(name, metric, mean, mean, mean, margin, False, FLAT)
    return Finding(name, metric, mean, low, high, margin, low > margin)


def values_of(made: Mapping[str, Any]) -> Values:
    """The values of an attempt, arm by arm."""
    return {arm: {m: x["values"] for m, x in metrics.items()} for arm, metrics in made["arms"].items()}


def reread(c: Claim, made: Mapping[str, Any]) -> dict[str, Any]:
    """An attempt with its findings and verdict by the rule of the code; `recorded` in a check holds what was written at the time,
    where that differs: `rule`, `low`, `high`, `shown`."""
    now = [_again(c, told, values_of(made)) for told in made["checks"]]
    verdict = "shown" if all(f["shown"] for f in now) else "not shown"
    then = {"recorded_verdict": made["verdict"]} if made["verdict"] != verdict else {}
    return {**made, "checks": now, "verdict": verdict, "rule": RULE, **then}


def _again(c: Claim, told: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """One check of an attempt once more."""
    check = compared(c, told, values)
    found = told_of(check, judged(check.name, check.metric, _over(check, values), check.margin, check.exact))
    then = {"how": told.get("how", FIRST_RULE)} | {k: told[k] for k in ("low", "high", "shown")}
    return found | ({"recorded": then} if then["how"] != found["how"] else {})


def compared(c: Claim, told: Mapping[str, Any], values: Values) -> Check:
    """The check behind a recorded finding. Early attempts did not write down which arms it compares: it is the claim's own where that
    gives the recorded numbers again, else the two arms (or an arm and a number) that do."""
    if "better" in told:
        return Check(*(told[k] for k in ("name", "metric", "better", "worse", "margin", "lower", "exact")))
    for check in [*(x for x in c.checks if x.metric == told["metric"]), *_candidates(told, values)]:
        if _gives(check, told, values):
            return replace(check, name=told["name"], margin=told["margin"])
    raise ValueError(f"no two arms of {c.id} give the recorded difference of {told['name']!r}")


def _candidates(told: Mapping[str, Any], values: Values) -> Iterator[Check]:
    """Every pair of arms, and every arm with the number that would give the recorded difference."""
    metric, difference = told["metric"], told["difference"]
    arms = [arm for arm, metrics in values.items() if metric in metrics]
    for better in arms:
        mean = sum(values[better][metric]) / len(values[better][metric])
        yield from (Check("", metric, better, worse) for worse in arms if worse != better)
        yield from (
            Check("", metric, better, mean - d, lower=lower) for d, lower in ((difference, False), (-difference, True))
        )


def _gives(check: Check, told: Mapping[str, Any], values: Values) -> bool:
    """Whether a check has the recorded difference and interval, by the rule of the first attempts."""
    if any(arm not in values for arm in (check.better, check.worse) if isinstance(arm, str)):
        return False
    over_S = _over(check, values)
    found = (sum(over_S) / len(over_S), *interval(over_S))
    return all(
        abs(x - told[k]) <= 1e-4 * max(1.0, abs(x)) for x, k in zip(found, ("difference", "low", "high"), strict=True)
    )


def _over(check: Check, values: Values) -> list[float]:
    return over(values, check.metric, check.better, check.worse, check.lower)


def told_of(check: Check, found: Finding) -> dict[str, Any]:
    """A finding as records keep it, with what was compared."""
    compared = {"better": check.better, "worse": check.worse, "lower": check.lower, "exact": check.exact}
    return rounded(asdict(found) | compared)


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers to six digits, as records keep them."""
    return {k: short(v) if isinstance(v, float) else v for k, v in values.items()}


def short(x: float) -> float:
    return float(f"{x:.6g}")


def same_digits(one: float, other: float) -> bool:
    """Whether two numbers are equal as records round them, but for one in the last digit: kinds of CPU round sums differently."""
    a, b = short(one), short(other)
    if a == b or not (math.isfinite(a) and math.isfinite(b)):
        return a == b
    return abs(a - b) <= 1.01 * 10.0 ** (math.floor(math.log10(max(abs(a), abs(b)))) - 5)
