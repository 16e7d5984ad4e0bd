"""The tools of a run: those of a file that the settings name, or functions that were given in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.protocols import Environment
from posttrain.environments.tooled import Tooled, with_tools
from posttrain.runs.limited import limited
from posttrain.runs.refuse import takes_turns
from posttrain.tools.named import tools_named


def with_named_tools(env: Environment, spec: str, reward: str = "") -> Tooled:
    """The environment with the tools of a spec; where a reward is named, that scores the answers."""
    tools, options = tools_named(spec)
    made = with_tools(env, tools, **options)
    return made.unpaid() if reward else made


def take_tools(tools: Any, settings: dict[str, Any], given: dict[str, Any], plan: bool) -> None:
    """What `posttrain.run(tools=...)` was given: a file is a setting, functions and Tool objects are themselves."""
    if isinstance(tools, str | Path):
        settings["tools"] = str(tools)
    elif tools is not None and plan:
        raise UserError(
            "functions are given to a method; to a plan that plays episodes give their file: tools='mine.py' (archer, multi-turn-agentic-guide)"
        )
    elif tools is not None:
        given["tools"] = [tools] if callable(tools) else list(tools)


def tooled(
    build: Callable[[Config], Environment], config: Config, given: dict[str, Any], method: Method
) -> Environment:
    """The environment that settings stand for, with tools that were given as functions; one that a given reward scores pays nothing."""
    if "tools" in given:
        takes_turns(method)
        plain = replace(config, max_turns=None, episode_seconds=None, overlap=None, free_running=False)
        env: Environment = limited(with_tools(build(plain), given["tools"]), config)
    else:
        env = build(config)
    return env.unpaid() if isinstance(env, Tooled) and "scorer" in given else env
