"""TextWorld: text games that the package itself makes, by seed: `--task "textworld(rooms=2, objects=4, quest=3)"`.

Making a game compiles it (about two seconds), so each is made once and kept under the cache folder (POSTTRAIN_CACHE, else
~/.cache/posttrain); a split has `games` (or `tests`) of them. A turn is one command; its reward is the change of the score, as a share
of the highest score, so that a game that is won is worth 1. Only the game's own verbs reach it: the story interpreter also
understands commands that write files or begin again (save, script, restart).
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import re
import shutil
import tempfile
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from posttrain.core import rng
from posttrain.core.answers import final
from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Environment, Episode, Step
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt
from posttrain.environments.adapters.faults import Faults, said
from posttrain.environments.base import SPLITS

MENU = "Answer with one command, such as: look, inventory, go north, take key, open chest."
_SHORT = ("n", "e", "s", "w", "l", "i", "x", "north", "east", "south", "west", "get", "goal", "help")
_LONGEST = 100  # characters of a command
_TAIL = re.compile(r"\n>[^\n]*$")  # the interpreter's prompt and status line
_FIRST = {"rooms": "nb_rooms", "objects": "nb_objects", "quest": "quest_length"}


class TextWorld(Environment):
    """Games of one kind. game: empty for rooms, objects and a quest, else a challenge of the package (cooking, coin_collector,
    treasure_hunter, simple) with its own settings. commands: whether the commands that can be done now are shown."""

    def __init__(
        self, game: str = "", games: int = 20, tests: int = 10, seed: int = 0, commands: bool = False, max_steps: int = 30,
        faults: int = 5, **settings: Any,
    ) -> None:  # fmt: skip
        for key, value in {"games": games, "tests": tests, "max_steps": max_steps}.items():
            if value < 1:
                raise UserError(f"{key} of textworld is {value}; it must be at least 1")
        self.tw, self.settings = package(), settled(game, settings)
        self.game, self.counts, self.seed = game, {"train": games, "test": tests}, seed
        self.commands, self.max_steps, self.faults = commands, max_steps, Faults(faults)
        told = {"game": game, "settings": self.settings, "seed": seed, "version": version("textworld")}
        self.folder = cache() / hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        self.name = f"textworld/{game or 'quest'}"
        self.first = lru_cache(maxsize=4096)(self._first)

    def size(self, split: str) -> int:
        return self.counts[split]

    def prompt(self, index: int, split: str = "train") -> Prompt:
        """Game number `index`; passes over a split repeat it."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        place = index % self.counts[split]
        seen, name = self.first(split, place), f"{self.name}-{self.folder.name}-{split}-{place}"
        return Prompt.text(name, f"{seen}\n\n{MENU}", split=split, place=place, seen=seen)

    def file(self, split: str, place: int) -> Path:
        """The compiled game; made where it is not there. Whoever is first to finish it has made it for all processes."""
        folder = self.folder / f"{split}-{place}"
        if not (folder / "game.z8").is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder) as half:
                self.make(rng.key("textworld", self.seed, split, place) & 0x7FFFFFFF, Path(half) / "made" / "game.z8")
                try:
                    os.rename(Path(half) / "made", folder)
                except OSError:  # another process was faster
                    if not (folder / "game.z8").is_file():
                        shutil.rmtree(folder, ignore_errors=True)
                        os.rename(Path(half) / "made", folder)
        return folder / "game.z8"

    def make(self, seed: int, path: Path) -> None:
        options = self.tw.GameOptions()
        options.seeds, options.path, options.file_ext = seed, str(path), ".z8"
        try:
            if self.game:
                maker = challenges()[self.game][1]
                self.tw.generator.compile_game(maker(dict(self.settings), options), options)
            else:
                for key, value in self.settings.items():
                    setattr(options, _FIRST[key], value)
                self.tw.make(options)
        except Exception as error:
            told = f"{type(error).__name__}: {error}".rstrip(": ")
            raise UserError(f"TextWorld could not make a game with {self.settings}: {told}") from None

    def _first(self, split: str, place: int) -> str:
        env = self.started(str(self.file(split, place)))
        return self.seen(env.reset())

    def started(self, path: str) -> Any:
        asked = self.tw.EnvInfos(
            feedback=True,
            objective=True,
            admissible_commands=True,
            score=True,
            max_score=True,
            won=True,
            lost=True,
            verbs=True,
        )
        env = self.tw.start(path, asked)
        env.seed(1)  # nothing in these games is left to chance
        return env

    def seen(self, state: Any) -> str:
        """What the game says, without its banner and its status line."""
        text = _TAIL.sub("", str(state.feedback))
        goal = str(state.objective or "")
        if goal and goal in text:
            text = goal + text.partition(goal)[2]
        text = re.sub(
            r"\n\s*\n\s*",
            "\n\n",
            "\n".join(line for line in text.splitlines() if "$$" not in line and "____" not in line),
        )
        shown = f"\n\nYou can: {', '.join(state.admissible_commands)}." if self.commands else ""
        return text.strip() + shown

    def open(self, prompt: Prompt, key: int) -> Episode:
        return Play(self, prompt)


class Play(Episode):
    """One game in progress."""

    def __init__(self, of: TextWorld, prompt: Prompt) -> None:
        self.of, self.prompt, self.faults = of, prompt, copy.copy(of.faults)
        path = of.file(prompt.info["split"], prompt.info["place"])
        self.env, self.steps, self.score = of.started(str(path)), 0, 0.0
        self.state = self.env.reset()
        self.done: list[tuple[str, str]] = []
        if of.seen(self.state) != prompt.info["seen"]:
            raise UserError(
                f"the game {path} begins otherwise than before; delete that folder, so that it is made anew"
            )

    def step(self, turn: Turn) -> Step:
        if not turn.stopped:  # cut off: what it says was not meant as it stands
            return said(f"That was too long. {MENU}")
        self.steps += 1
        late = self.steps >= self.of.max_steps
        command, problem = self.read(turn.text)
        if problem:
            told = self.faults.told(problem)
            return told if told.messages is None or not late else Step(None, reward=0.0, stop="max_turns")
        could = [c.lower() for c in self.state.admissible_commands]
        seen, reward = self.act(command)
        if self.state.won or self.state.lost:
            return Step(None, reward=reward, info={"won": bool(self.state.won)})
        if late:
            return Step(None, reward=reward, stop="max_turns", info={"won": False})
        if command in could or reward or could != [c.lower() for c in self.state.admissible_commands]:
            self.faults.none()  # known to the game, or another word for it: something changed
            return said(seen, reward)
        return self.faults.told(seen)

    def read(self, text: str) -> tuple[str, str]:
        """The command of a turn, or what is wrong with it."""
        answer = final(text)
        command = " ".join((answer or "").strip().splitlines()[:1]).strip().rstrip(".!").lower()
        verb = command.split(" ")[0]
        if not command:
            return "", f"That says nothing. {MENU}"
        if len(command) > _LONGEST or re.search(r"[.;]|\bthen\b", command):
            return "", f"That is more than one command. {MENU}"
        if verb not in self.state.verbs and verb not in _SHORT:
            return "", f"{verb[:20]!r} is no verb here; the verbs are: {', '.join(self.state.verbs)}."
        return command, ""

    def act(self, command: str) -> tuple[str, float]:
        self.state, score, _ = self.env.step(command)
        gained, self.score = float(score or 0) - self.score, float(score or 0)
        seen = self.of.seen(self.state)
        self.done.append((command, seen))
        return seen, gained / max(float(self.state.max_score or 1), 1.0)

    def fork(self) -> Play:
        """A copy of the interpreter, where it can be copied; else the same commands again, which must show the same."""
        new = copy.copy(self)
        new.faults, new.done = copy.copy(self.faults), list(self.done)
        try:
            new.env = self.env.copy()
        except Exception:  # an interpreter that has no copy
            new = replayed(self)
        return new

    def close(self) -> None:
        self.env.close()


def replayed(play: Play) -> Play:
    """The same game and commands again."""
    new = Play(play.of, play.prompt)
    new.faults, new.steps = copy.copy(play.faults), play.steps
    for command, before in play.done:
        if (now := new.act(command)[0]) != before:
            raise UserError(
                f"{play.prompt.id} showed {now!r:.80} where it had shown {before!r:.80}: it cannot be replayed"
            )
    return new


def settled(game: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a kind of game, with its defaults; those that it does not have are refused."""
    if not game:
        known: dict[str, Any] = {"rooms": 2, "objects": 4, "quest": 3}
    elif game not in challenges():
        raise unknown("game of textworld", game, challenges())
    else:
        parser = argparse.ArgumentParser(add_help=False)
        challenges()[game][2](parser)
        known = {a.dest: default_of(a) for a in parser._actions}
    for key in settings:
        if key not in known:
            raise unknown(f"setting of textworld {game}".rstrip(), key, known)
    return known | settings


def default_of(option: argparse.Action) -> Any:
    """Of a setting that the package wants to be told: its first choice, or 1."""
    if not option.required:
        return option.default
    return next(iter(option.choices)) if option.choices else 1


def challenges() -> dict[str, Any]:
    """The package's challenges by name, without the `tw-` in front."""
    found = import_module("textworld.challenges").CHALLENGES
    return {name.removeprefix("tw-"): made for name, made in found.items()}


def cache() -> Path:
    """Where games are kept."""
    root = os.environ.get("POSTTRAIN_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "posttrain") / "textworld"


def package() -> Any:
    try:
        found = import_module("textworld")
        import_module("textworld.generator")
        return found
    except ImportError:
        raise UserError("TextWorld is not installed; type: pip install 'posttrain[textworld]'") from None


def textworld(**options: Any) -> TextWorld:
    """The Environment of games of one kind; see TextWorld for the options."""
    return TextWorld(**options)
