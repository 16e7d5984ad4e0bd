"""The limits that settings put on episodes."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment
from posttrain.rewards.runtime.score import say_once


def limited(env: Environment, config: Config) -> Environment:
    """The environment with the limits of the settings on its episodes."""
    asked = {
        "turns": config.max_turns,
        "seconds": config.episode_seconds,
        "overlap": config.overlap,
        "free": config.free_running or None,
    }
    given: dict[str, Any] = {k: v for k, v in asked.items() if v is not None}
    if not given:
        return env
    if not env.opens:
        raise UserError(
            f"{env.name} has single answers, no episodes; leave --max-turns, --episode-seconds, --overlap and --free-running away"
        )
    if config.free_running:
        say_once(
            "--free-running: what is sampled beside what depends on which replies come first, so this run cannot be repeated to the bit"
        )
    out = copy.copy(env)
    out.limits = replace(env.limits, **given)
    return out
