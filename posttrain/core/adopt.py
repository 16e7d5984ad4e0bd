"""Environments and episodes that only look like one: whatever has `prompt`, or `step`, takes part; the rest is filled in."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment, Episode, Limits, Step
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Prompt


def adopt(env: Any, name: str = "") -> Environment:
    """The environment itself where it subclasses Environment, else one that asks it; without a name it is called by its class."""
    if isinstance(env, type):
        raise UserError(f"{env.__name__} is a class; give an environment made of it: {env.__name__}()")
    if not callable(getattr(env, "prompt", None)):
        raise UserError(f"{type(env).__name__} is no environment: it has no prompt(index, split) -> Prompt")
    out = env if isinstance(env, Environment) else Adopted(env)
    if not isinstance(getattr(out, "name", None), str):
        out.name = name.lower() or type(env).__name__.lower()
    asks(out, type(env).__name__)
    return out


def asks(env: Environment, called: str) -> None:
    """Look at its first prompt, which is a function of (index, split) alone: a mistake is told before anything is loaded."""
    try:
        first = env.prompt(0, "train")
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{called}.prompt(0, 'train') failed: {type(error).__name__}: {error}") from error
    if not isinstance(first, Prompt):
        got = type(first).__name__
        raise UserError(f"{called}.prompt gave {got}, expected a Prompt: pt.Prompt.text(id, text, answer)")
    own_ids(env, called, first)


def own_ids(env: Environment, called: str, first: Prompt) -> None:
    """Refuse one id for different prompts: the id is the identity of every random draw, and of a prompt's group."""
    try:
        others = [env.prompt(i, "train") for i in (1, 2, 3)]
    except Exception:  # it may have a single prompt
        return
    for other in others:
        if (
            isinstance(other, Prompt)
            and other.id == first.id
            and (other.content, other.answer) != (first.content, first.answer)
        ):
            raise UserError(
                f"{called}.prompt gives different prompts the id {first.id!r}; random draws belong to ids, so each needs its own: "
                'Prompt.text(f"{split}-{index}", ...)'
            )


class Adopted(Environment):
    """An object with some of an environment's methods; what it lacks is as if it subclassed Environment."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.limits = inner, getattr(inner, "limits", Limits())

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def graded(self) -> bool:
        return bool(getattr(self.inner, "graded", hasattr(self.inner, "grade")))

    @property
    def opens(self) -> bool:
        return hasattr(self.inner, "open")

    def prompt(self, index: int, split: str = "train") -> Prompt:
        made: Prompt = self.inner.prompt(index, split)
        return made

    def open(self, prompt: Prompt, key: int) -> Episode | None:
        return self.inner.open(prompt, key) if hasattr(self.inner, "open") else None

    def first_role(self, prompt: Prompt) -> str:
        return str(self.inner.first_role(prompt)) if hasattr(self.inner, "first_role") else super().first_role(prompt)

    def validate(self, n: int) -> list[str]:
        return list(self.inner.validate(n)) if hasattr(self.inner, "validate") else super().validate(n)

    def grade(self, prompt: Prompt, text: str) -> float:
        return float(self.inner.grade(prompt, text)) if hasattr(self.inner, "grade") else super().grade(prompt, text)


def adopt_episode(episode: Any, env: str) -> Episode:
    """The episode itself where it subclasses Episode, else one that asks it."""
    if isinstance(episode, Episode):
        return episode
    if isinstance(episode, type) or not callable(getattr(episode, "step", None)):
        got = f"the class {episode.__name__}" if isinstance(episode, type) else type(episode).__name__
        raise UserError(f"{env}.open gave {got}, which is no episode; expected an object with step(turn) -> Step")
    return AdoptedEpisode(episode)


class AdoptedEpisode(Episode):
    """An object with some of an episode's methods; what it lacks is as if it subclassed Episode."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def start(self) -> Observation | None:
        seen: Observation | None = self.inner.start() if hasattr(self.inner, "start") else None
        return seen

    def step(self, turn: Turn) -> Step | Awaitable[Step]:
        said: Step | Awaitable[Step] = self.inner.step(turn)
        return said

    def replay(self, turn: Turn, step: Step) -> Awaitable[None] | None:
        said: Awaitable[None] | None = (
            self.inner.replay(turn, step) if hasattr(self.inner, "replay") else super().replay(turn, step)
        )
        return said

    def fork(self) -> Episode:
        return AdoptedEpisode(self.inner.fork()) if hasattr(self.inner, "fork") else super().fork()

    def close(self) -> None:
        if hasattr(self.inner, "close"):
            self.inner.close()
