"""What the settings of a run ask a plan for: its task, and what says how good answers are."""

from __future__ import annotations

from typing import Any

from posttrain.core.plan import Context
from posttrain.environments.task import task
from posttrain.rewards.runtime.spec import build_scorer


def asked_task(context: Context) -> Any:
    """The task of the settings."""
    c = context.config
    return task(c.task, level=c.level, think=c.think, data=c.data or None)


def asked_rewards(context: Context) -> Any:
    """The reward of the settings; the task's own grade where they name none."""
    c = context.config
    return build_scorer(c.reward, asked_task(context), c.reward_timeout, c.device)
