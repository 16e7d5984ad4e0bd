"""What a simulated run comes to: time per step, how long each role waited, what failures cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Sums of seconds over a run; `making` and `loading` over all workers."""

    cards: int
    trainers: int
    workers: int
    colocated: bool
    seconds: float = 0.0
    ticks: list[float] = field(default_factory=list)  # when each step was done
    making: float = 0.0
    loading: float = 0.0
    training: float = 0.0
    publishing: float = 0.0
    saving: float = 0.0
    failures: int = 0
    lost: float = 0.0  # seconds of cards: work that was made again, and waiting for what failed
    stale: Counter[int] = field(default_factory=Counter)  # steps that a shard's weights were behind -> shards

    @property
    def steps(self) -> list[float]:
        """Seconds of each step; of those after the start-up, where there are enough."""
        each = [b - a for a, b in zip([0.0, *self.ticks], self.ticks)]
        return each[2:] if len(each) > 4 else each

    def quantile(self, share: float) -> float:
        """Linear between the two nearest steps."""
        ordered = sorted(self.steps)
        place = share * (len(ordered) - 1)
        low = int(place)
        return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])

    @property
    def step(self) -> float:
        """Seconds per step on average, start-up left out."""
        return sum(self.steps) / len(self.steps)

    @property
    def idle(self) -> dict[str, float]:
        """Share of the time that the cards of each role did nothing."""
        own = self.training + self.publishing + self.saving
        if self.colocated:
            return {"cards": max(0.0, 1 - (own + (self.making + self.loading) / self.workers) / self.seconds)}
        return {
            "trainers": max(0.0, 1 - own / self.seconds),
            "rollout workers": max(0.0, 1 - (self.making + self.loading) / self.workers / self.seconds),
        }
