"""A treasure in a square field: walk to it within a number of moves.

Level 1: 3x3, each answer says in which direction it lies. Level 2: 4x4, each says how many steps away it is. Level 3: the same in 5x5. The
moves allowed are those of a walk to the first cell that all answers so far allow, and two more. Habits: walking in circles; always
east.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from posttrain.core.answers import final_answer, plain
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.workshop import scene
from posttrain.environments.workshop.scene import Expert, Reply, worded

DEFAULT_LEVEL = 1
HABITS = {"circles": 5.0, "straight": 1.0}
MOVES = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
SPARE = 2
Cell = tuple[int, int]


def seen(at: Cell, treasure: Cell, level: int) -> str:
    """What is told at a place."""
    here = f"You are at {at[0]},{at[1]}."
    dx, dy = treasure[0] - at[0], treasure[1] - at[1]
    if level > 1:
        return f"{here} {abs(dx) + abs(dy)} steps to the treasure."
    ways = [w for w, (x, y) in MOVES.items() if x * dx > 0 or y * dy > 0]
    return f"{here} The treasure lies {' '.join(ways)}."


def moved(at: Cell, way: str, size: int) -> Cell:
    """The next place; the fence round the field stops a step out of it."""
    x, y = at[0] + MOVES[way][0], at[1] + MOVES[way][1]
    return (x, y) if 1 <= x <= size and 1 <= y <= size else at


def towards(at: Cell, goal: Cell) -> str:
    """The way to a cell, first in the first coordinate."""
    if goal[0] != at[0]:
        return "east" if goal[0] > at[0] else "west"
    return "north" if goal[1] > at[1] else "south"


def walk(start: Cell, treasure: Cell, size: int, level: int) -> Iterator[str]:
    """The right way: at each place to the first cell that could hold the treasure by all that was told."""
    possible = [(x, y) for x in range(1, size + 1) for y in range(1, size + 1)]
    at = start
    while at != treasure:
        told = seen(at, treasure, level)
        possible = [c for c in possible if c != at and seen(at, c, level) == told]
        way = towards(at, possible[0])
        yield way
        at = moved(at, way, size)


def make(rng: Random, level: int) -> Problem:
    """A start, a treasure elsewhere, and as many moves as the right way takes and two more."""
    size = level + 2
    cells = [(x, y) for x in range(1, size + 1) for y in range(1, size + 1)]
    start, treasure = rng.sample(cells, 2)
    budget = len(list(walk(start, treasure, size, level))) + SPARE
    told = "Say north, east, south or west."
    question = f"A treasure is hidden in a field of {size} by {size}. You have {budget} moves. {told} {seen(start, treasure, level)}"
    wording, text = worded(rng, question)
    info = {"start": start, "treasure": treasure, "size": size, "level": level, "budget": budget, "wording": wording}
    return Problem(text, f"{treasure[0]},{treasure[1]}", info=info, identity=f"{size} {start} {treasure}")


class Scene(scene.Scene):
    """The field; a word that is no direction costs a move too."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(prompt)
        self.at, self.left = tuple(self.info["start"]), self.info["budget"]

    def reply(self, text: str) -> Reply:
        way, treasure = plain(final_answer(text) or ""), tuple(self.info["treasure"])
        self.left -= 1
        if way in MOVES:
            self.at = moved(self.at, way, self.info["size"])
        if self.at == treasure:
            return Reply(None, 1.0)
        if not self.left:
            return Reply(None, stop="max_turns")
        told = seen(self.at, treasure, self.info["level"])
        return Reply(told if way in MOVES else f"Say north, east, south or west. {told}")


def expert(prompt: Prompt, habit: str, rng: Random) -> Expert:
    info = prompt.info
    if habit:
        ways = list(MOVES) if habit == "circles" else ["east"]
        for k in range(info["budget"]):
            yield ways[k % len(ways)]
        return
    yield from walk(tuple(info["start"]), tuple(info["treasure"]), info["size"], info["level"])
