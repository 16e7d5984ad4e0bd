"""Workshop: eleven tasks that are done, not only answered: tools, search, SQL, code, games, judging, a second try, a consultation.

`workshop("fact_search", level=2)` is an Environment; most have turns. A task is one file (see `scene.py`), each with an expert that shows
the right way or one of its wrong habits: the model pocket-2 was trained on both, so that RL has something to sharpen.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Environment
from posttrain.environments import base
from posttrain.environments.workshop import (
    better_answer,
    consultation,
    escape_room,
    fact_search,
    number_guess,
    one_liners,
    rubric_score,
    second_try,
    table_sql,
    tool_calls,
    treasure,
)
from posttrain.environments.workshop.scene import LEVELS, Workshop

_MODULES = (
    tool_calls, fact_search, table_sql, one_liners, treasure, number_guess, escape_room, rubric_score, better_answer, second_try,
    consultation,
)  # fmt: skip
SKILLS: dict[str, ModuleType] = {module.__name__.rpartition(".")[2]: module for module in _MODULES}


def workshop(skill: str, level: int | None = None, seed: int = 0, allow_unsafe_code: bool = False) -> Environment:
    """The Environment of one task; level 1 (easy) to 3, by default the task's own DEFAULT_LEVEL.

    allow_unsafe_code (of one_liners alone) runs programs without a sandbox, with your rights.
    """
    if skill not in SKILLS:
        raise unknown("workshop task", skill, SKILLS)
    module = SKILLS[skill]
    level = module.DEFAULT_LEVEL if level is None else level
    if level not in LEVELS:
        raise UserError(f"level {level!r} of {skill!r}: expected 1 to 3; try {skill}(level={module.DEFAULT_LEVEL})")
    if allow_unsafe_code and skill != "one_liners":
        raise UserError(f"{skill} runs no programs, so it takes no allow_unsafe_code; leave it out")
    info: dict[str, Any] = {"task": skill, "level": level}
    if hasattr(module, "Scene"):
        return Workshop(module, level, seed, info)
    return base.Task(
        name=f"workshop-{skill}-{level}",
        make=partial(module.make, level=level),
        check=partial(module.check, allow_unsafe_code=True) if allow_unsafe_code else module.check,
        spoil=getattr(module, "spoil", base.corrupt),
        seed=seed,
        info=info,
    )
