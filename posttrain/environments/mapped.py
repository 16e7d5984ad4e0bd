"""An environment with every prompt changed, or left out: a system message, prompts that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from posttrain.core.protocols import Environment, Episode
from posttrain.core.types import Prompt
from posttrain.environments.data import DataEnvironment
from posttrain.environments.fields import with_system
from posttrain.environments.language.listed import Listed
from posttrain.environments.mixed import Mixed
from posttrain.environments.stream import Stream

Change = Callable[[Prompt, str], Prompt | None]  # (prompt, split) -> the prompt to use; None leaves it out


def each(env: Environment, change: Change) -> Environment:
    """The environment with its prompts changed; ids stay, so that the draws of all others do. Only one that is made of rows
    can leave prompts out."""
    if isinstance(env, DataEnvironment):
        return replace(env, splits={split: _kept(some, change, split) for split, some in env.splits.items()})
    if isinstance(env, Listed):
        return replace(env, train=_kept(env.train, change, "train"), test=_kept(env.test, change, "test"))
    if isinstance(env, Mixed):
        return Mixed({name: each(one, change) for name, one in env.tasks.items()})
    return env.but(change) if isinstance(env, Stream) else Mapped(env, change)


def _kept(prompts: tuple[Prompt, ...], change: Change, split: str) -> tuple[Prompt, ...]:
    return tuple(q for p in prompts if (q := change(p, split)) is not None)


def with_system_message(env: Environment, text: str) -> Environment:
    """Every prompt begins with this system message, in place of its own."""
    return each(env, lambda p, split: replace(p, content=with_system(p.content, text)))


def with_prefill(env: Environment, text: str) -> Environment:
    """Every answer begins with this text, in place of its row's own; as it stands: `\\n` from a command line is a new line."""
    said = text.replace("\\n", "\n")
    return each(env, lambda p, split: replace(p, info={**p.info, "prefill": said}))


class Mapped(Environment):
    """An environment of any kind whose prompts are changed; all else is its own."""

    def __init__(self, env: Environment, change: Change) -> None:
        self.env, self.change, self.limits = env, change, env.limits

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def graded(self) -> bool:
        return self.env.graded

    @property
    def opens(self) -> bool:
        return self.env.opens

    def prompt(self, index: int, split: str = "train") -> Prompt:
        made = self.env.prompt(index, split)
        return self.change(made, split) or made

    def open(self, prompt: Prompt, key: int) -> Episode | None:
        return self.env.open(prompt, key)

    def first_role(self, prompt: Prompt) -> str:
        return self.env.first_role(prompt)

    def grade(self, prompt: Prompt, text: str) -> float:
        return self.env.grade(prompt, text)

    def validate(self, n: int) -> list[str]:
        return self.env.validate(n)
