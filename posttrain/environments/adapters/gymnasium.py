"""Any Gymnasium environment that a text can play: `--task "gymnasium(id='FrozenLake-v1')"`.

A prompt is the start that one seed gives; what chance does afterwards (cards, slippery ice) is drawn by the episode's own key, so the
episodes of a prompt begin alike and differ. Observations are the environment's own picture in text (render mode `ansi`) or their
numbers; a turn names an action.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Environment, Episode, Step
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt
from posttrain.environments.adapters.faults import Faults, said
from posttrain.environments.adapters.spaces import Unreadable, described, reader, uncoloured, unseen
from posttrain.environments.base import SPLITS

# what the package's own environments call their actions, and the parts of what is seen; `actions` and `labels` name those of others
ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "wait", "right"),
    "Acrobot": ("left", "wait", "right"),
}
LABELS = {
    "Blackjack": ("your sum", "the dealer shows", "usable ace (1 yes, 0 no)"),
    "CartPole": ("cart position", "cart velocity", "pole angle", "pole angular velocity"),
    "MountainCar": ("position", "velocity"),
    "Pendulum": ("x", "y", "angular velocity"),
}
_PLACES = ("Red", "Green", "Yellow", "Blue", "the taxi")
_TRIED = 8  # turns that are played twice before anything is loaded
_RULES = 500  # characters of an environment's own description


class Gymnasium(Environment):
    """An environment of the package, or of one that registers with it; `make` are the options of `gymnasium.make`."""

    def __init__(
        self, id: str, actions: Sequence[str] = (), labels: Sequence[str] = (), rules: str = "", faults: int = 3,
        penalty: float = 0.0, **make: Any,
    ) -> None:  # fmt: skip
        self.id, self.make, self.faults = id, make, Faults(faults, penalty)
        self.name = f"gymnasium/{id}"
        first = self.made()
        self.kind = type(first.unwrapped).__name__.removesuffix("Env")
        self.labels = tuple(labels) or LABELS.get(self.kind, ())
        words = tuple(actions.split() if isinstance(actions, str) else actions)
        if not words and len(ACTIONS.get(self.kind, ())) == getattr(first.action_space, "n", -1):  # else it is wrapped
            words = ACTIONS[self.kind]
        self.drawn = first.render_mode == "ansi"
        if (why := unseen(first.observation_space)) and not self.drawn:
            raise UserError(
                f"{id} shows {why}, which a text cannot; wrap it so that it observes a few numbers or a text"
            )
        try:
            self.read, self.menu = reader(first.action_space, words)
        except UserError as error:
            raise UserError(f"{id} cannot be played in words: {error}") from None
        self.rules = rules or rules_of(first.unwrapped) or f"You act in {id}."
        self.start = lru_cache(maxsize=4096)(self._start)
        self._first = first
        self.repeats()

    def made(self) -> Any:
        """A new environment of the package; its picture in text where it can draw one."""
        gym = package()
        try:
            module, _, id = self.id.rpartition(":")  # `module:Env-v0` is registered by importing the module
            if module:
                import_module(module)
            entry = gym.spec(id).entry_point
            entry = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
            known = getattr(
                entry, "metadata", None
            )  # of a class; of a wrapper it is a property, and a function has none
            modes = known.get("render_modes", ()) if isinstance(known, dict) else ()
            ansi = {"render_mode": "ansi"} if "ansi" in modes else {}
            return gym.make(id, **{"disable_env_checker": True, **ansi, **self.make})
        except gym.error.DependencyNotInstalled as error:
            raise UserError(f"{self.id} needs another package: {error}") from None
        except (gym.error.UnregisteredEnv, gym.error.NameNotFound) as error:
            raise unknown("Gymnasium environment", id, gym.registry) from error
        except Exception as error:
            told = f" with {self.make}" if self.make else ""
            raise UserError(f"gymnasium cannot make {self.id}{told}: {type(error).__name__}: {error}") from None

    def prompt(self, index: int, split: str = "train") -> Prompt:
        """The start that seed number `index` of a split gives."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        seed = rng.key(self.name, split, index) & 0x7FFFFFFF
        seen = self.start(seed)
        text = f"{self.rules}\n\n{seen}\n\n{self.menu}"
        return Prompt.text(f"{self.name}-{split}-{index}", text, seed=seed, seen=seen)

    def _start(self, seed: int) -> str:
        return self.told(self._first, self._first.reset(seed=seed)[0])

    def told(self, env: Any, seen: Any) -> str:
        """What is seen, as a text."""
        if not self.drawn:
            return described(env.observation_space, seen, self.labels)
        picture = uncoloured(env.render())
        return f"{picture}\n{taxi(env, seen)}" if self.kind == "Taxi" else picture

    def open(self, prompt: Prompt, key: int) -> Episode:
        return Play(self, prompt, key)

    def repeats(self) -> None:
        """Play a few turns twice: an environment that draws from elsewhere than its own generator cannot be resumed or replayed."""
        one = Play(self, self.prompt(0), 1)
        one.env.action_space.seed(1)
        for _ in range(_TRIED):
            if any(one.act(one.env.action_space.sample())[2:]):
                break
        replayed(one).close()
        one.close()


class Play(Episode):
    """One episode; `done` are its actions with what was seen after each, so that it can be played again."""

    def __init__(self, of: Gymnasium, prompt: Prompt, key: int) -> None:
        self.of, self.prompt, self.key = of, prompt, key
        self.env, self.faults = of.made(), copy.copy(of.faults)
        self.done: list[tuple[Any, str]] = []
        seen = of.told(self.env, self.env.reset(seed=prompt.info["seed"])[0])
        if seen != prompt.info["seen"]:
            raise UserError(
                f"{of.id} begins otherwise with the same seed, so its episodes cannot be repeated; give the options that fix it, such as "
                "map_name='4x4' of FrozenLake"
            )
        self.env.unwrapped.np_random = generator(key)

    def step(self, turn: Turn) -> Step:
        if not turn.stopped:  # cut off: whatever it names was not meant
            return said(f"That was too long. {self.of.menu}")
        try:
            action = self.of.read(turn.text)
        except Unreadable as problem:
            return self.faults.told(str(problem))
        self.faults.none()
        seen, reward, over, late = self.act(action)
        if over or late:
            return Step(None, reward=reward, stop="answered" if over else "max_turns")
        return said(seen, reward)

    def act(self, action: Any) -> tuple[str, float, bool, bool]:
        found, reward, over, late, _ = self.env.step(action)
        seen = self.of.told(self.env, found)
        self.done.append((action, seen))
        return seen, float(reward), bool(over), bool(late)

    def fork(self) -> Play:
        """A copy where the environment can be copied; else the same actions again, which must show the same."""
        new = copy.copy(self)
        new.faults, new.done = copy.copy(self.faults), list(self.done)
        try:
            new.env = copy.deepcopy(self.env)
        except Exception:  # whatever holds a window, a file, another process
            new = replayed(self)
        return new

    def close(self) -> None:
        self.env.close()


def replayed(play: Play) -> Play:
    """The same prompt, key and actions again."""
    new = Play(play.of, play.prompt, play.key)
    new.faults = copy.copy(play.faults)
    for action, before in play.done:
        if (now := new.act(action)[0]) != before:
            raise UserError(f"{play.of.id} showed {now!r:.80} where it had shown {before!r:.80}: it cannot be replayed")
    return new


def generator(key: int) -> Any:
    """The chance of an episode, by its key."""
    import numpy as np

    return np.random.Generator(np.random.PCG64(key & 0xFFFFFFFFFFFFFFFF))


def rules_of(env: Any) -> str:
    """The first paragraph of what an environment says of itself, headings left out, whole sentences."""
    paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", type(env).__doc__ or "")]
    text = next((p for p in paragraphs if p and not p.startswith("#")), "")
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return text if len(text) <= _RULES else text[:_RULES].rpartition(". ")[0] + "."


def taxi(env: Any, seen: int) -> str:
    """The colours of the taxi's picture in words."""
    row, column, passenger, goal = env.unwrapped.decode(int(seen))
    waits = "is in the taxi" if passenger == 4 else f"waits at {_PLACES[passenger]}"
    return f"The taxi [ ] is in row {row}, column {column}; the passenger {waits} and wants to go to {_PLACES[goal]}."


def package() -> Any:
    try:
        return import_module("gymnasium")
    except ImportError:
        raise UserError("Gymnasium is not installed; type: pip install 'posttrain[gym]'") from None


def gymnasium(id: str = "", **options: Any) -> Gymnasium:
    """The Environment of one Gymnasium id; options of the adapter (actions, labels, rules, faults, penalty) or of the environment."""
    if not id:
        raise UserError("name the environment: --task \"gymnasium(id='FrozenLake-v1')\"")
    return Gymnasium(id, **options)
