"""Environments that only look like one: whatever has `prompt` takes part, the rest is filled in."""

from __future__ import annotations

from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment, Episode
from posttrain.core.types import Prompt


def adopt(env: Any, name: str = "") -> Environment:
    """The environment itself where it subclasses Environment, else one that asks it; without a name it is called by its class."""
    if not callable(getattr(env, "prompt", None)):
        raise UserError(f"{type(env).__name__} is no environment: it has no prompt(index, split) -> Prompt")
    out = env if isinstance(env, Environment) else Adopted(env)
    if not isinstance(getattr(out, "name", None), str):
        out.name = name.lower() or type(env).__name__.lower()
    return out


class Adopted(Environment):
    """An object with some of an environment's methods; what it lacks is as if it subclassed Environment."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

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

    def grade(self, prompt: Prompt, text: str) -> float:
        return float(self.inner.grade(prompt, text)) if hasattr(self.inner, "grade") else super().grade(prompt, text)
