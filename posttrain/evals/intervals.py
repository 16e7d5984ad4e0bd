"""Confidence intervals: of a mean over problems (Wilson, Student t), of differences over a few paired seeds (Student t at 99.5%), and
the percentile bootstrap, which needs more values than a handful of seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.errors import UserError

RESAMPLES = 2000
LEVEL = 0.95
PAIRED_LEVEL = 0.995


@dataclass(frozen=True)
class Estimate:
    """A mean over problems with its interval; `how` says which. nan: one problem says nothing of another."""

    mean: float
    low: float
    high: float
    how: str
    n: int  # problems

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


def estimate(
    scores_PG: Sequence[Sequence[float]], share: bool | None = None, behind: int = 1, level: float = LEVEL
) -> Estimate:
    """The mean of problems' means, where each problem has the scores of its answers, and an interval of it.

    Scores of 0 and 1 (or `share`: any numbers in [0, 1] that are chances of 0 and 1): Wilson's interval, which is right at
    0 of 40 too. Others: Student t over problems. Answers to one problem are alike, so problems are what is counted: with
    several answers each (or `behind` each score), Wilson's n is the number of independent answers that would vary as much.
    """
    means = [math.fsum(xs) / len(xs) for xs in scores_PG if xs]
    many = behind > 1 or any(len(xs) > 1 for xs in scores_PG)
    if not means:
        return Estimate(math.nan, math.nan, math.nan, "no scores", 0)
    if share is None:
        share = all(x in (0.0, 1.0) for xs in scores_PG for x in xs)
    mean = math.fsum(means) / len(means)
    if not share:
        low, high = student(means, level)
        return Estimate(mean, low, high, "Student t over problems", len(means))
    n = independent(means, behind * sum(len(xs) for xs in scores_PG))
    low, high = wilson(mean, n, level)
    return Estimate(mean, low, high, "Wilson, answers clustered by problem" if many else "Wilson", len(means))


def independent(means_P: Sequence[float], answers: int) -> float:
    """How many independent 0/1 answers would have a mean that varies as this one: p (1 - p) / (s^2 / P), from P to `answers`.

    s is the standard deviation of the problems' means. All problems alike: P, the least that is certain.
    """
    P = len(means_P)
    mean = math.fsum(means_P) / P
    s2 = math.fsum((m - mean) ** 2 for m in means_P) / max(P - 1, 1)
    if s2 == 0 or not 0 < mean < 1:
        return float(P)
    return min(max(mean * (1 - mean) * P / s2, P), answers)


def wilson(p: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's interval of a share: the p0 with |p - p0| <= z sqrt(p0 (1 - p0) / n). 0 of 40: 0 to 8.8%."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (0.0 if p == 0 else max(middle - half, 0.0)), (1.0 if p == 1 else min(middle + half, 1.0))


def clopper_pearson(k: int, n: int, delta: float) -> float:
    """The largest p for which k of n or fewer are not rarer than delta: an upper bound with chance 1 - delta at any n."""
    if not 0 < delta < 1:
        raise UserError(f"delta is {delta}; it is the chance of being wrong, between 0 and 1")
    if k >= n:
        return 1.0
    low, high = k / n, 1.0
    for _ in range(100):
        p = (low + high) / 2
        terms = (
            math.lgamma(n + 1)
            - math.lgamma(i + 1)
            - math.lgamma(n - i + 1)
            + i * math.log(p)
            + (n - i) * math.log1p(-p)
            for i in range(k + 1)
        )
        low, high = (p, high) if math.fsum(map(math.exp, terms)) > delta else (low, p)
    return high


def student(values_S: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """mean -+ t sqrt(var / n), t of n - 1 degrees of freedom; one value alone: nan."""
    n = len(values_S)
    if n < 2:
        return math.nan, math.nan
    mean = math.fsum(values_S) / n
    error = math.sqrt(math.fsum((x - mean) ** 2 for x in values_S) / (n - 1) / n)
    t = t_quantile((1 + level) / 2, n - 1)
    return mean - t * error, mean + t * error


def paired(values_S: Sequence[float], level: float = PAIRED_LEVEL) -> tuple[float, float]:
    """The interval behind a verdict over 5 to 20 paired seeds: Student t, at a level that is right for skewed values too.

    A check asks whether the lower end lies above its margin, so what counts is how often it does when the true mean is the margin.
    With t at 95% that is 2.5% for normal values, but 6% for accuracies that bunch below 1 (Beta(8, 2)) and 9% for Beta(5, 1);
    the percentile bootstrap of 5 seeds adds as much again. At 99.5% it is 0.25%, 1% and 2%
    (tests/evals/test_paired_coverage.py measures it for every seed count in use). What no interval of so few seeds sees
    is a rare collapse that none of them had.

    All values equal: no spread to judge by, so nan; a sampled figure that does not vary says that it is too coarse.
    """
    low, high = student(values_S, level)
    mean = math.fsum(values_S) / max(len(values_S), 1)
    return (math.nan, math.nan) if high - low <= 1e-9 * max(abs(mean), 1e-9) else (low, high)


def t_quantile(q: float, df: int) -> float:
    """The q-quantile (q >= 1/2) of Student's t with df degrees of freedom, by bisection of its distribution function.

    Far out it is the normal quantile z + (z^3 + z) / (4 df), whose error is below 1e-6 from 2,000 degrees on.
    """
    if df > 2000:
        z = NormalDist().inv_cdf(q)
        return z + (z**3 + z) / (4 * df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < q:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < q else (low, middle)
    return (low + high) / 2


def t_cdf(t: float, df: int) -> float:
    """P(T <= t) for t >= 0: the finite sums over cos^2 of theta = atan(t / sqrt(df)) (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    theta = math.atan(t / math.sqrt(df))
    sin, cos = math.sin(theta), math.cos(theta)
    if df % 2:
        term = total = cos if df > 1 else 0.0
        for k in range(3, df, 2):
            term *= cos * cos * (k - 1) / k
            total += term
        return 0.5 + (theta + sin * total) / math.pi
    term = total = 1.0
    for k in range(2, df, 2):
        term *= cos * cos * (k - 1) / k
        total += term
    return 0.5 + sin * total / 2


def resampled_means(values_S: Sequence[float], resamples: int = RESAMPLES) -> Tensor:
    """Means of `resamples` draws with replacement, as many as there are values; the draws depend on nothing else."""
    x_S = torch.tensor(list(values_S), dtype=torch.float64)
    n = x_S.numel()
    index_RS = torch.randint(n, (resamples, n), generator=rng.torch_generator("bootstrap", n, resamples))
    return x_S[index_RS].mean(-1)


def interval(values_S: Sequence[float], level: float = LEVEL, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The central `level` of the resampled means. All values equal: a point."""
    if not values_S:
        raise UserError("no values to resample; run at least one seed")
    tail = (1 - level) / 2
    ends = torch.quantile(resampled_means(values_S, resamples), torch.tensor([tail, 1 - tail], dtype=torch.float64))
    return float(ends[0]), float(ends[1])


def differences(better_S: Sequence[float], worse_S: Sequence[float]) -> list[float]:
    """What the first has over the second, seed by seed: pairing removes what the seed itself contributes."""
    if len(better_S) != len(worse_S):
        raise UserError(
            f"arms of {len(better_S)} and {len(worse_S)} seeds cannot be paired; run both on the same seeds"
        )
    return [b - w for b, w in zip(better_S, worse_S, strict=True)]
