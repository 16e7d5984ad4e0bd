"""A number to be guessed in as many tries as halving the range takes: 7 numbers in 3, 15 in 4, 31 in 5.

Habits: counting up from the lowest; the middle again and again, whatever was answered.
"""

from __future__ import annotations

import re
from random import Random

from posttrain.core.answers import final_answer
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.workshop import scene
from posttrain.environments.workshop.scene import Expert, Reply, worded

DEFAULT_LEVEL = 1
HABITS = {"stuck": 2.0, "count_up": 1.0}


def make(rng: Random, level: int) -> Problem:
    """The range begins anywhere below 60, so that no list of guesses is learned by heart."""
    tries = level + 2
    low = rng.randint(1, 60)
    high = low + 2**tries - 2
    secret = rng.randint(low, high)
    wording, text = worded(rng, f"Guess a number from {low} to {high} in {tries} tries.")
    info = {"low": low, "high": high, "tries": tries, "wording": wording}
    return Problem(text, str(secret), info=info, identity=f"{low} {high} {secret}")


class Scene(scene.Scene):
    """Answers higher or lower."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(prompt)
        self.left = self.info["tries"]

    def reply(self, text: str) -> Reply:
        said = re.findall(r"-?\d{1,6}", final_answer(text) or "")
        self.left -= 1
        if said and int(said[-1]) == int(self.prompt.answer):
            return Reply(None, 1.0)
        if not self.left:
            return Reply(None, stop="max_turns")
        if not said:
            return Reply("Say a number.")
        return Reply("higher" if int(said[-1]) < int(self.prompt.answer) else "lower")


def expert(prompt: Prompt, habit: str, rng: Random) -> Expert:
    low, high = prompt.info["low"], prompt.info["high"]
    for k in range(prompt.info["tries"]):
        guess = low + k if habit == "count_up" else (low + high) // 2
        told = yield str(guess)
        if habit:
            continue
        low, high = (guess + 1, high) if told == "higher" else (low, guess - 1)
