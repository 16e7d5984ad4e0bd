"""A sum answered twice: a first answer, then "check and answer again". Only the second answer counts; both are kept.

The first is written without steps, so it is often wrong; the right second one works the sum out. `Rollout.info` has the grade of both as
`first` and `second`. Habits: the first answer repeated; a first answer that was right, changed.
"""

from __future__ import annotations

from random import Random

from posttrain.core.answers import final_answer
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem, same_text
from posttrain.environments.school import arithmetic
from posttrain.environments.school.noisy_solver import NoisySolver
from posttrain.environments.workshop import scene
from posttrain.environments.workshop.scene import Expert, Reply, near, worded

DEFAULT_LEVEL = 2
HABITS = {"repeat": 2.0, "spoil": 1.0}
AGAIN = "There may be an error in it. Check it and answer again."
_FIRST_RIGHT = 0.35  # of the first answers of the right way


def make(rng: Random, level: int) -> Problem:
    """The school's sums, one level up."""
    seed = rng.getrandbits(60)
    gold = arithmetic.make(Random(seed), level + 1)
    hasty = NoisySolver(Random(0), 0.0, (0.0, 0.0))  # forgets carries, always
    wording, text = worded(rng, f"What is {gold.identity}? First give your answer at once.")
    wrong = arithmetic.make(Random(seed), level + 1, hasty).answer
    info = {"wrong": wrong, "steps": gold.steps, "wording": wording}
    return Problem(text, gold.answer, gold.steps, info, identity=gold.identity)


class Scene(scene.Scene):
    """Asks to check, once."""

    def reply(self, text: str) -> Reply:
        said = final_answer(text)
        right = float(bool(said) and same_text(self.prompt, said or ""))
        if "first" not in self.told:
            self.told["first"] = right
            return Reply(AGAIN)
        self.told["second"] = right
        return Reply(None, right)


def expert(prompt: Prompt, habit: str, rng: Random) -> Expert:
    gold, wrong = str(prompt.answer), str(prompt.info["wrong"])
    right = habit == "spoil" or (not habit and rng.random() < _FIRST_RIGHT)
    yield gold if right else wrong
    if habit == "repeat":
        yield wrong
    elif habit == "spoil":
        yield wrong if wrong != gold else str(near(rng, int(gold)))
    else:
        yield f"<think>{prompt.info['steps']}</think>{gold}"
