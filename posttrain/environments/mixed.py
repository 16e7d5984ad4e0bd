"""Several tasks as one: `task("arithmetic + counting")`. Each prompt says which it belongs to (`info["task"]`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from posttrain.core.protocols import Environment, Episode, Step
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt


@dataclass(frozen=True)
class Mixed(Environment):
    """Prompts of each task in turn, graded by their own task; it never ends, the shorter tasks come again."""

    tasks: Mapping[str, Environment]

    @property
    def name(self) -> str:
        return "+".join(self.tasks)

    @property
    def graded(self) -> bool:
        """Whether every part can grade its own."""
        return all(env.graded for env in self.tasks.values())

    @property
    def opens(self) -> bool:
        """Whether any part has turns; an answer to one of the others is then an episode of one turn."""
        return any(env.opens for env in self.tasks.values())

    def open(self, prompt: Prompt, key: int) -> Episode | None:
        env = self.tasks[prompt.info["task"]]
        return env.open(prompt, key) if env.opens else OneAnswer(env, prompt)

    def of(self, name: str, index: int, split: str = "train") -> Prompt:
        """Prompt number `index` of one task."""
        made = self.tasks[name].prompt(index, split)
        return replace(made, info=made.info | {"task": name})

    def prompt(self, index: int, split: str = "train") -> Prompt:
        names = list(self.tasks)
        return self.of(names[index % len(names)], index // len(names), split)

    def grade(self, prompt: Prompt, text: str) -> float:
        return float(self.tasks[prompt.info["task"]].grade(prompt, text))

    def validate(self, n: int) -> list[str]:
        return [problem for env in self.tasks.values() for problem in env.validate(n)]


@dataclass
class OneAnswer(Episode):
    """A task of single answers as an episode: the first turn is graded and ends it."""

    env: Environment
    prompt: Prompt

    def step(self, turn: Turn) -> Step:
        return Step(
            None, reward=float(self.env.grade(self.prompt, turn.text)), stop="answered" if turn.stopped else "length"
        )
