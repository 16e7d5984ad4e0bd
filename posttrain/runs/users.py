"""`--user MODEL`: a second model plays the role `user` in the episodes of a task. It is frozen: it speaks, and nothing of it is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment
from posttrain.runs.trained import find_trained

USER = "user"


def users(config: Config, env: Environment, runs: str | Path, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The policies of other roles: those that were given, and the user's."""
    others = dict(given or {})
    roles = roles_of(env)
    wanted = USER in (roles or ())
    if not config.user:
        if wanted and USER not in others:
            raise UserError(
                f"the user of {env.name} is a model; name one: --user pocket, --user path/to/model, --user runs/NAME"
            )
        return others
    if not env.opens:
        raise UserError(f"{env.name} has single answers, so nobody speaks with the policy; leave --user away")
    if roles is not None and not wanted:
        raise UserError(f"no model plays a user in {env.name}; leave --user away, or use a task whose user is a model")
    if config.sampler != "local" or config.lag or config.shards > 1:
        raise UserError("--user: the user speaks in the process that trains; leave --sampler, --lag and --shards away")
    return others | {USER: frozen(config, runs)}


def roles_of(env: Environment) -> set[str] | None:
    """Who speaks in a task, or in some task of a mixture; None where it does not say."""
    mixed = getattr(env, "tasks", None)
    told = [roles_of(one) for one in mixed.values()] if isinstance(mixed, Mapping) else [getattr(env, "roles", None)]
    known = [set(roles) for roles in told if roles is not None]
    return set().union(*known) if known else None


def frozen(config: Config, runs: str | Path) -> Any:
    """The model as it is, without gradients; rollouts of a policy that only plays are not learned from."""
    from posttrain.runs.build import load_policy

    which = find_trained(config.user, runs)
    name = str(which) if which else config.user
    whole = dataclasses.replace(config, model=name, lora=0, lora_targets="", bits=0, adapter="", merge_adapter=False)
    policy = load_policy(whole)
    policy.requires_grad_(False)
    policy.eval()
    policy.only_plays = True
    return policy


def with_users(config: Config, env: Environment, runs: str | Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """`others` of a run, where there are some."""
    found = users(config, env, runs, given.get("others"))
    return {"others": found} if found else {}
