"""A task whose training questions come with a worked answer to imitate."""

from __future__ import annotations

from dataclasses import replace

from posttrain.core.protocols import Environment
from posttrain.core.types import Prompt
from posttrain.environments.base import size_of


class Worked(Environment):
    """The first `size` training questions of a task, each with a worked answer to imitate; its test questions as they are."""

    def __init__(self, env: Environment, size: int) -> None:
        self.env, self.name, self.size = env, env.name, min(size, size_of(env, "train") or size)

    @property
    def graded(self) -> bool:
        return self.env.graded

    def prompt(self, index: int, split: str = "train") -> Prompt:
        if split != "train":
            return self.env.prompt(index, split)
        return with_steps(self.env.prompt(index % self.size, split))

    def grade(self, prompt: Prompt, text: str) -> float:
        return float(self.env.grade(prompt, text))


def with_steps(prompt: Prompt) -> Prompt:
    """The demonstration `<think>STEPS</think>ANSWER` where the question has steps; one that it brought along stays, a column
    `solution` beside the answer is one."""
    steps, solution = prompt.info.get("steps"), prompt.info.get("solution")
    if isinstance(solution, str) and "demonstration" not in prompt.info:
        return replace(prompt, info=prompt.info | {"demonstration": solution})
    if "demonstration" in prompt.info or not steps or not prompt.info.get("think", True):
        return prompt
    return replace(prompt, info=prompt.info | {"demonstration": f"<think>{steps}</think>{prompt.answer}"})
