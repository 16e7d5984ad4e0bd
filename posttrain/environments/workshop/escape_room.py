"""Rooms, a key, a chest: go north, take key, open chest, take coin. The map is told; the way is to be found in it.

Level 1: the coin lies in another room. Level 2: it is in a chest, whose key lies elsewhere, in four rooms. Level 3: the same in six rooms.
The key earns 0.25, the open chest 0.25, the coin the rest. Habits: to and fro between two rooms; straight to the chest without the key
(at level 1: taking the coin where it is not), again and again.
"""

from __future__ import annotations

from random import Random
from typing import Any

from posttrain.core.answers import final_answer, plain
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.school.words import listed
from posttrain.environments.workshop import scene
from posttrain.environments.workshop.scene import Expert, Reply, worded
from posttrain.environments.workshop.treasure import MOVES

DEFAULT_LEVEL = 1
HABITS = {"no_key": 4.0, "to_and_fro": 1.0}
ROOMS = listed("hall kitchen attic cellar garden study porch tower library bedroom stable chapel")
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
SPARE = 3
Map = dict[str, dict[str, str]]  # room -> way -> room


def grown(rng: Random, n: int) -> tuple[Map, list[str]]:
    """n rooms on a grid, each joined to one that was there, and the sentences that tell so."""
    names = rng.sample(ROOMS, n)
    place = {names[0]: (0, 0)}
    ways: Map = {name: {} for name in names}
    told = []
    for name in names[1:]:
        near = [(old, way) for old in place for way in MOVES if _beside(place[old], way) not in place.values()]
        old, way = rng.choice(near)
        place[name] = _beside(place[old], way)
        ways[old][way], ways[name][BACK[way]] = name, old
        told.append(f"The {name} is {way} of the {old}.")
    return ways, told


def _beside(at: tuple[int, int], way: str) -> tuple[int, int]:
    return at[0] + MOVES[way][0], at[1] + MOVES[way][1]


def route(ways: Map, start: str, goal: str) -> list[str]:
    """The way through the rooms, which are joined as a tree: there is one."""
    todo: list[tuple[str, list[str]]] = [(start, [])]
    seen = {start}
    while todo:
        at, path = todo.pop(0)
        if at == goal:
            return path
        for way, room in ways[at].items():
            if room not in seen:
                seen.add(room)
                todo.append((room, [*path, way]))
    raise ValueError(f"{goal} cannot be reached from {start}")


def commands(info: dict[str, Any]) -> list[str]:
    """The shortest way to the coin."""
    ways, start, key, chest = info["map"], info["start"], info["key"], info["chest"]
    if not key:
        return [*(f"go {w}" for w in route(ways, start, chest)), "take coin"]
    first, then = route(ways, start, key), route(ways, key, chest)
    return [*(f"go {w}" for w in first), "take key", *(f"go {w}" for w in then), "open chest", "take coin"]


def make(rng: Random, level: int) -> Problem:
    """Rooms as a tree; start, key and chest are in different ones."""
    ways, told = grown(rng, (3, 4, 6)[level - 1])
    start, key, chest = rng.sample(list(ways), 3)
    info: dict[str, Any] = {"map": ways, "start": start, "key": key if level > 1 else "", "chest": chest}
    things = f"The key is in the {key}. The chest is in the {chest}." if level > 1 else f"The coin is in the {chest}."
    info["budget"] = len(commands(info)) + SPARE
    question = f"{' '.join(told)} {things} You are in the {start}. Get the coin in {info['budget']} commands."
    wording, text = worded(rng, question)
    return Problem(text, "coin", info=info | {"wording": wording}, identity=f"{' '.join(told)} {things} {start}")


class Scene(scene.Scene):
    """Where one stands, and what has been done."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(prompt)
        self.at, self.left = self.info["start"], self.info["budget"]
        self.key, self.open = not self.info["key"], not self.info["key"]

    def reply(self, text: str) -> Reply:
        said = plain(final_answer(text) or "")
        self.left -= 1
        told, reward = self.done(said)
        if told is None:
            return Reply(None, reward)
        return Reply(told, reward) if self.left else Reply(None, reward, stop="max_turns")

    def done(self, said: str) -> tuple[str | None, float]:
        """What a command does, and what it earns; None: the coin is taken."""
        chest = self.at == self.info["chest"]
        if said.startswith("go "):
            room = self.info["map"][self.at].get(said[3:])
            self.at = room or self.at
            return self.look() if room else "There is no way.", 0.0
        if said == "take key" and self.at == self.info["key"] and not self.key:
            self.key = True
            return "You have the key.", 0.25
        if said == "open chest" and chest and self.info["key"] and not self.open:
            self.open = self.key
            return ("The chest is open. You see a coin.", 0.25) if self.key else ("It is locked.", 0.0)
        if said == "take coin" and chest and self.open:
            return None, 0.5 if self.info["key"] else 1.0
        return "That does nothing.", 0.0

    def look(self) -> str:
        """The room and what is in it."""
        there = f"You are in the {self.at}."
        if self.at == self.info["key"] and not self.key:
            return f"{there} You see a key."
        if self.at == self.info["chest"]:
            return f"{there} You see a {'chest' if self.info['key'] else 'coin'}."
        return there


def expert(prompt: Prompt, habit: str, rng: Random) -> Expert:
    info = prompt.info
    if not habit:
        yield from (command for command in commands(info))
        return
    if habit == "to_and_fro":
        way = rng.choice(list(info["map"][info["start"]]))
        said = [f"go {way}", f"go {BACK[way]}"]
    else:
        said = ["open chest"] if info["key"] else ["take coin"]
        for way in route(info["map"], info["start"], info["chest"]) if info["key"] else []:
            yield f"go {way}"
    k = 0
    while True:
        yield said[k % len(said)]
        k += 1
