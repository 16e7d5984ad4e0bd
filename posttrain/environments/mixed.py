"""Several tasks as one: `task("arithmetic + counting")`. Each prompt says which it belongs to (`info["task"]`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from posttrain.core.protocols import Environment
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
