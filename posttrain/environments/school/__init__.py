"""School: ten small tasks with a difficulty dial, written so that a tiny model can learn them and RL can sharpen it.

`school("arithmetic", level=3, think=True)` is an Environment. A task is one file: `make(rng, level) -> Problem`, and
`check` where exact comparison is not the right grader.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType

from posttrain.core.errors import UserError, unknown
from posttrain.environments import base
from posttrain.environments.school import (
    arithmetic,
    comparison,
    countdown,
    counting,
    dates,
    instructions,
    sorting,
    strings,
    units,
    word_problems,
)

_MODULES = (arithmetic, word_problems, comparison, counting, strings, sorting, countdown, dates, units, instructions)
TASKS: dict[str, ModuleType] = {module.__name__.rpartition(".")[2]: module for module in _MODULES}
LEVELS = range(1, 7)
THINK, DIRECT = " Think first.", " Answer only."


def school(task: str, level: int | None = None, think: bool = True, seed: int = 0) -> base.Task:
    """The Environment of one task; level 1 (easy) to 6, by default the task's own DEFAULT_LEVEL.

    With think a good answer is `<think>STEPS</think>ANSWER`, without it is `ANSWER`.
    """
    if task not in TASKS:
        raise unknown("school task", task, TASKS)
    module = TASKS[task]
    level = module.DEFAULT_LEVEL if level is None else level
    if level not in LEVELS:
        raise UserError(
            f"level {level!r} of {task!r}: expected 1 to 6; try school({task!r}, level={module.DEFAULT_LEVEL})"
        )
    return base.Task(
        name=f"school-{task}-{level}-{'think' if think else 'direct'}",
        make=partial(module.make, level=level),
        check=getattr(module, "check", base.same_text),
        spoil=getattr(module, "spoil", base.corrupt),
        seed=seed,
        suffix=THINK if think else DIRECT,
        info={"task": task, "level": level, "think": think},
    )
