"""How often a monitor is wrong on series like those of runs: nothing is said of noise, of usual runs and of solved tasks, and what is planted
is found. Each rate is of 200 seeds; the five monitors whose limits no real run has tried (docs/page.md)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from posttrain.runs import monitors as m

Curve = list[tuple[int, float]]
SEEDS = 200


def rate(fires: Callable[[random.Random], object]) -> float:
    return sum(fires(random.Random(seed)) is not None for seed in range(SEEDS)) / SEEDS


def entropies(rng: random.Random, end: float, noise: float, steps: int = 200, start: float = 0.4) -> Curve:
    """Falls from start to start * end as an exponential, times log-normal noise with a mean of 1: spikes upwards, as entropies have."""
    fall = math.log(1 / end) / (steps - 1)
    return [(s, start * math.exp(-fall * s) * rng.lognormvariate(-(noise**2) / 2, noise)) for s in range(steps)]


FLAT: Curve = [(s, 0.4) for s in range(200)]  # a score that stays where it is


@pytest.mark.parametrize("noise", [0.1, 0.8, 1.3])
def test_entropy_collapse_rates(noise: float) -> None:
    """-73% in 200 steps is usual (arXiv:2505.22617); no trend at all, of 10 and of 40 steps; a fall to 5%."""
    assert rate(lambda r: m.entropy_collapse(entropies(r, 0.27, noise), FLAT)) <= 0.02
    for steps in (10, 40, 200):
        assert rate(lambda r, n=steps: m.entropy_collapse(entropies(r, 1.0, noise, n), FLAT[:n])) <= 0.02  # type: ignore[misc]
    least = 0.95 if noise < 1 else 0.6  # such noise hides some
    assert rate(lambda r: m.entropy_collapse(entropies(r, 0.03, noise), FLAT)) >= least


def gaps(rng: random.Random, start: float, end: float, spike: float = 0.0, steps: int = 100) -> Curve:
    """The mean difference of log-probabilities, which varies by a fifth from step to step; spike: added at one of the last five steps."""
    found = [(s, (start + (end - start) * s / (steps - 1)) * rng.uniform(0.8, 1.2)) for s in range(steps)]
    at = steps - 1 - rng.randrange(5)
    return [(s, v + (spike if s == at else 0.0)) for s, v in found]


def test_gap_growing_rates() -> None:
    """Rounding (1e-7), a sampler in bfloat16 (0.015, steady, or up by half), one spike; a sampler that falls behind."""
    assert rate(lambda r: m.gap_growing(gaps(r, 1e-7, 3e-7))) == 0
    assert rate(lambda r: m.gap_growing(gaps(r, 0.015, 0.022))) == 0
    assert rate(lambda r: m.gap_growing(gaps(r, 1e-7, 1e-7, spike=0.08))) == 0, "one step is no growth"
    assert rate(lambda r: m.gap_growing(gaps(r, 1e-7, 0.03))) >= 0.99
    assert rate(lambda r: m.gap_growing(gaps(r, 0.01, 0.06))) >= 0.99


def answers(rng: random.Random, loops: float, plain: float, n: int = 128) -> list[float]:
    """Repeated 4-grams of n answers: a share of them loops (0.6 to 1), the others repeat as prose, chains of thought or calls do."""
    return [
        rng.uniform(0.6, 1.0) if rng.random() < loops else min(1.0, rng.betavariate(2, 2 / plain - 2)) for _ in range(n)
    ]


def test_repetition_rates() -> None:
    """Prose repeats 3% of its 4-grams, long chains of thought a tenth, calls as JSON in tokens of a letter three tenths from the start."""
    for plain in (0.03, 0.1, 0.3):
        assert rate(lambda r, p=plain: m.repetition(answers(r, 0.0, p), 0, 9, answers(r, 0.0, p))) <= 0.01  # type: ignore[misc]
    assert rate(lambda r: m.repetition(answers(r, 0.05, 0.03), 0, 9, answers(r, 0.05, 0.03))) <= 0.01, "some always do"
    assert rate(lambda r: m.repetition(answers(r, 0.2, 0.03), 0, 9, answers(r, 0.0, 0.03))) >= 0.99, (
        "a fifth has begun to loop"
    )
    assert rate(lambda r: m.repetition(answers(r, 0.8, 0.03), 0, 9, answers(r, 0.8, 0.03))) >= 0.99, (
        "from the first step on"
    )


def groups(
    rng: random.Random, right: float, style: float, tied: float = 0.0, count: int = 64
) -> list[list[dict[str, float]]]:
    """Groups of 8, as many as the newest 512 answers are: an answer is right, and in style, with these chances; a share of groups has the same grade throughout."""
    out = []
    for _ in range(count):
        same = rng.random() < tied
        grade = float(rng.random() < right)
        out.append(
            [
                {"right": grade if same else float(rng.random() < right), "style": float(rng.random() < style)}
                for _ in range(8)
            ]
        )
    return out


WEIGHTS = {"right": 1.0, "style": 0.5}


def test_take_over_rates() -> None:
    """Style has half the weight. Where the grade varies it decides at most 0.25 / (0.25 + 1) = a fifth of the variance; where nearly all
    are right it decides most, and that is no fault; where the grade never moves from 0 it is all that is learned."""
    assert rate(lambda r: m.take_over(groups(r, 0.5, 0.5), WEIGHTS, 0.0, 0, 9)) == 0
    for count in (10, 16, 64):
        assert rate(lambda r, n=count: m.take_over(groups(r, 0.3, 0.5, 0.5, n), WEIGHTS, 0.0, 0, 9)) <= 0.02  # type: ignore[misc]
    assert rate(lambda r: m.take_over(groups(r, 0.98, 0.5), WEIGHTS, 0.0, 0, 9)) == 0, "solved"
    assert rate(lambda r: m.take_over(groups(r, 0.01, 0.5), WEIGHTS, 0.0, 0, 9)) >= 0.99
    assert rate(lambda r: m.take_over(groups(r, 0.3, 0.5, tied=1.0), WEIGHTS, 0.0, 0, 9)) >= 0.99, (
        "no group differs in its grade"
    )


def test_echo_rates() -> None:
    """More than a tenth of 512 answers: chance copies of one in fifty are not told, one in five is; exactly a tenth is not."""

    def pairs(rng: random.Random, share: float) -> list[tuple[str, str]]:
        return [("ask me", "ask me " if rng.random() < share else "42") for _ in range(512)]

    assert rate(lambda r: m.echoes(pairs(r, 0.02), 0, 9)) == 0 and rate(lambda r: m.echoes(pairs(r, 0.2), 0, 9)) >= 0.99
    assert (
        m.echoes([("q", "q")] + [("q", "a")] * 9, 0, 9) is None
        and m.echoes([("q", "q")] * 2 + [("q", "a")] * 9, 0, 9) is not None
    )
