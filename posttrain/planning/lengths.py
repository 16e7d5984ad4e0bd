"""How long answers are: a log-normal with a limit, or those of a run that was made."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from posttrain.core.errors import UserError

SPREAD = 0.8  # standard deviation of the logarithm, as in benchmarks/rollout.py


@dataclass(frozen=True)
class Lengths:
    """Tokens per answer. `seen`: lengths to draw from; else log-normal of this mean before the limit cuts it."""

    mean: float
    most: int
    spread: float = SPREAD
    seen: Sequence[int] = field(default=(), repr=False)

    def draw(self, count: int, rng: random.Random) -> list[int]:
        if self.seen:
            return [min(self.most, x) for x in rng.choices(self.seen, k=count)]
        if not self.spread or self.mean >= self.most:
            return [max(1, min(self.most, round(self.mean)))] * count
        middle = math.log(self.mean) - self.spread**2 / 2
        return [max(1, min(self.most, round(rng.lognormvariate(middle, self.spread)))) for _ in range(count)]

    @cached_property
    def held(self) -> float:
        """Tokens that a slot holds on average at the worst time: in a full engine, E[x^2] / 2 E[x]; of answers that began
        together, the most of t x P(x > t) over t."""
        drawn = sorted(self.draw(2000, random.Random(0)))
        together = max(x * (len(drawn) - i) / len(drawn) for i, x in enumerate(drawn))
        return max(together, sum(x * x for x in drawn) / (2 * sum(drawn)))

    def __str__(self) -> str:
        if self.seen:
            return (
                f"as {len(self.seen):,} answers of that run, {sum(self.seen) / len(self.seen):,.0f} tokens on average"
            )
        if not self.spread or self.mean >= self.most:
            return f"{min(self.mean, self.most):,.0f} tokens each"
        return f"log-normal, {self.mean:,.0f} tokens on average, at most {self.most:,}"


def lengths_of_run(folder: Path, most: int) -> Lengths:
    """The lengths of a run's answers, from its database."""
    file = folder / "run.sqlite"
    if not file.is_file():
        raise UserError(f"--lengths is {folder}, which has no run.sqlite; name a run, such as --lengths runs/NAME")
    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as store:
            seen = [int(x) for (x,) in store.execute("SELECT length FROM rollouts WHERE length > 0")]
    except sqlite3.Error as error:
        raise UserError(f"the lengths in {file} cannot be read ({error}); name another run") from None
    if not seen:
        raise UserError(f"{folder} has no answers yet; name a run that has made some")
    return Lengths(sum(seen) / len(seen), most, seen=seen)
