"""A number-guessing game in turns: an environment as a user would write it.

    posttrain run grpo --task examples/guess.py:Guess --advantage turns --sampling.max-tokens 16

The model guesses, is told "higher" or "lower", and guesses again, three times at most. What you should see: the mean reward of
held-out games rises from 0.25 to 0.73, 0.72 and 0.54 in 40 steps (seeds 0, 1, 2).
"""

from __future__ import annotations

import re

import posttrain as pt


class Guess(pt.Environment):
    """Guess a number from 1 to `top` in `tries` guesses: 1 for a hit, 0.2 less for each guess before it."""

    def __init__(self, top: int = 4, tries: int = 3) -> None:
        self.top, self.tries = top, tries

    def prompt(self, index: int, split: str = "train") -> pt.Prompt:
        secret = pt.rng.python("guess", split, index).randint(1, self.top)
        return pt.Prompt.text(f"guess-{split}-{index}", f"Guess a number from 1 to {self.top}.", secret)

    def open(self, prompt: pt.Prompt, key: int) -> Game:
        return Game(int(prompt.answer), self.tries)


class Game(pt.Episode):
    """One game: the secret and the guesses that are left."""

    def __init__(self, secret: int, left: int) -> None:
        self.secret, self.left, self.worth = secret, left, 1.0

    def step(self, turn: pt.Turn) -> pt.Step:
        said = re.findall(r"\d+", turn.text)
        self.left -= 1
        if said and int(said[-1]) == self.secret:
            return pt.Step(None, reward=self.worth)
        self.worth -= 0.2
        if self.left == 0:
            return pt.Step(None, reward=0.0)
        hint = "Say a number." if not said else "higher" if int(said[-1]) < self.secret else "lower"
        return pt.Step([{"role": "user", "content": hint}], reward=0.0)


def main(seed: int = 0, small: bool = False, runs: str = "runs") -> dict[str, float]:
    """The command above from Python; returns the mean reward of held-out games before and after."""
    summary = pt.run(
        env=Guess(), method=pt.find_method("grpo").but(advantage="turns"), steps=12 if small else 40, seed=seed, fresh=True,
        prompts=8 if small else 16, eval_problems=100, sampling={"max_tokens": 16}, name=f"guess-{seed}", runs=runs,
    )  # fmt: skip
    return {"before": summary["reward_before"], "after": summary["reward_after"]}
