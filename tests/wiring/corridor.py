"""A small game with turns, for systems that play: a turn is right where the sum of its letters is even, and `need` right turns win."""

from __future__ import annotations

from posttrain.core.protocols import Environment, Episode, Limits, Step
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt

LONGEST = 4  # turns


def right(text: str) -> bool:
    return sum(map(ord, text)) % 2 == 0


class Walk(Episode):
    """One game."""

    def __init__(self, need: int) -> None:
        self.need, self.got, self.turns = need, 0, 0

    def step(self, turn: Turn) -> Step:
        self.turns += 1
        self.got += right(turn.text)
        earned = float(right(turn.text))
        if self.got == self.need:
            return Step(None, earned, info={"won": True})
        if self.turns == LONGEST:
            return Step(None, earned, stop="max_turns", info={"won": False})
        return Step([{"role": "user", "content": "on" if earned else "no"}], earned)


class Corridor(Environment):
    name, limits = "corridor", Limits(turns=8)

    def __init__(self, need: int = 2) -> None:
        self.need = need

    def prompt(self, index: int, split: str = "train") -> Prompt:
        return Prompt.text(f"{split}-{index}", f"room {index % 5}?", most=float(self.need))

    def open(self, prompt: Prompt, key: int) -> Walk:
        return Walk(self.need)
