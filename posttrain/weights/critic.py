"""The critic's share of a learner: parameters of its own rate and norm in the policy's optimiser, which may learn alone at first."""

from __future__ import annotations

from typing import Any

import torch

from posttrain.core.critic import SHARED, VALUES, CriticSettings
from posttrain.core.errors import UserError
from posttrain.core.registry import Part

Named = list[tuple[str, torch.nn.Parameter]]


def with_critic(policy: Any, how: CriticSettings) -> None:
    """The critic that the settings ask for, unless the policy has one."""
    options: dict[str, Any] = {"heads": len(how.rewards)} if how.rewards else {}
    options |= {"shared": True} if how.start == SHARED else {}
    try:
        policy.with_critic(**options)
    except TypeError:
        kind = type(policy).__name__
        raise UserError(f"{kind} has one critic of its own; {', '.join(options)} is for language models") from None


def is_critic(name: str) -> bool:
    """Whether a parameter of a policy belongs to its critic."""
    return name == "critic" or name.startswith("critic.")


def halves(named: Named) -> tuple[Named, Named]:
    """The policy's own parameters and the critic's."""
    return [x for x in named if not is_critic(x[0])], [x for x in named if is_critic(x[0])]


def optimiser_of(part: Part, named: Named, critic_lr: float) -> tuple[torch.optim.Optimizer, list[bool]]:
    """One optimiser for both, with groups of their own for the critic; and which groups are the critic's."""
    own, critic = halves(named)
    if not own or not critic:
        made = part.but(lr=critic_lr)(critic) if critic else part(own)
        return made, [bool(critic)] * len(made.param_groups)
    made = part(own)
    first = len(made.param_groups)
    for group in part.but(lr=critic_lr)(critic).param_groups:
        made.add_param_group(group)
    return made, [i >= first for i in range(len(made.param_groups))]


def values_read(reads: set[str]) -> list[str]:
    """The streams of a critic that something reads, live or from before the update."""
    return [name for name in VALUES if {name, f"old_{name}"} & reads]
