"""The environment's own grade."""

from __future__ import annotations

from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem, Task


@reward(title="The task's own grade")
def task(prompt: Prompt, text: str, environment: Any = None) -> float:
    """The task's own grade: r = environment.grade(prompt, text).

    Bind the environment first: task.but(environment=env).
    """
    ready(environment)
    return float(environment.grade(prompt, text))


def ready(environment: Any = None, **_: object) -> None:
    """Refuse to start without an environment that grades."""
    if not hasattr(environment, "grade"):
        got = f"the reward 'task' needs an environment that grades, got {environment!r}"
        raise UserError(f"{got}; bind it: task.but(environment=env)")


def validate() -> list[str]:
    """Gold passes, corrupted fails, on a task of one question."""
    env = Task("sum", lambda rng: Problem("2+2?", "4"))
    prompt = Prompt.text("task", "2+2?", "4")
    return problems(task.but(environment=env), [(prompt, "<think>2+2</think>4", "5"), (prompt, "4", "<think>4")])
