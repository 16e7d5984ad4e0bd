"""The solver that writes the steps of a school problem: always right in tasks, with errors in the pretraining corpus.

The pocket model is trained on its errors: one misconception per task, used more often in some wordings of a question than in
others, beside the right way. RL then has a systematic mistake to remove, whatever the wording.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

X = TypeVar("X")


class NoisySolver:
    """Computes results. Without a random generator it is always right; with one it makes two kinds of errors.

    A habit is drawn by `reads`: a wording of parity p is answered the right way with probability care[p], else by the
    task's misconception, which is a function of the problem alone. A slip is random: each result of an answer without
    habit is wrong with probability `rate`, at most once per answer, and the steps after it use the wrong result.
    """

    __slots__ = ("care", "habit", "rate", "rng", "slipped")

    def __init__(self, rng: Random | None = None, rate: float = 0.4, care: tuple[float, float] = (1.0, 1.0)):
        self.rng, self.rate, self.care = rng, rate, care
        self.slipped = self.habit = False

    def reads(self, rng: Random, wordings: int) -> int:
        """Draw which of the wordings the question has, and whether this answer follows the habit."""
        wording = rng.randrange(wordings)
        if self.rng is not None:
            self.habit = self.rng.random() >= self.care[wording % 2]
        return wording

    def slips(self) -> bool:
        """Draw whether this result is the slip."""
        if self.rng is None or not self.rate or self.slipped or self.habit or self.rng.random() >= self.rate:
            return False
        self.slipped = True
        return True

    def number(self, x: int) -> int:
        """A result: x, or a number near it. A slip keeps the sign, so columns stay digits."""
        if not self.slips():
            return x
        assert self.rng is not None
        wrong = x + self.rng.choice((1, -1, 1, -1, 2, -2, 10, -10))
        return wrong if (wrong < 0) == (x < 0) else x + (1 if x >= 0 else -1)

    def pick(self, right: X, options: Sequence[X]) -> X:
        """The right option, or another one."""
        if not self.slips():
            return right
        assert self.rng is not None
        others = [x for x in options if x != right]
        return self.rng.choice(others) if others else right

    def copy(self, items: list[X]) -> list[X]:
        """A list copied; a slip swaps two neighbours or skips an item."""
        if len(items) < 2 or not self.slips():
            return items
        assert self.rng is not None
        i = self.rng.randrange(len(items) - 1)
        if self.rng.random() < 0.5:
            return items[:i] + items[i + 1 :]
        return items[:i] + [items[i + 1], items[i]] + items[i + 2 :]


CAREFUL = NoisySolver()
