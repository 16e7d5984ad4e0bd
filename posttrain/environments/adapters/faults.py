"""Turns that say no action: each is answered with what to say, and several in a row end the episode."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.core.errors import UserError
from posttrain.core.protocols import Step


@dataclass
class Faults:
    """Counts turns in a row that could not be used; at the `most`-th the episode ends as the policy's own fault."""

    most: int = 3
    penalty: float = 0.0  # reward of such a turn
    count: int = 0

    def __post_init__(self) -> None:
        if self.most < 1:
            raise UserError(f"faults is {self.most}; an episode ends after 1 turn or more in a row that says no action")

    def told(self, problem: str) -> Step:
        """What follows a turn that could not be used."""
        self.count += 1
        if self.count >= self.most:
            return Step(None, reward=self.penalty, stop="content")
        return said(problem, self.penalty)

    def none(self) -> None:
        """A turn that could be used."""
        self.count = 0


def said(text: str, reward: float = 0.0) -> Step:
    """The episode goes on with what is seen next."""
    return Step([{"role": "user", "content": text}], reward=reward)
