"""What a traced run leaves: steps, updates, calls of the reward, draws, phases."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from posttrain.core.loop import Loop
from posttrain.core.method import Method
from posttrain.core.types import Group, Rollout


@dataclass
class Step:
    """What a source gave at one step, and what the selection left of it."""

    phase: str
    step: int
    groups: list[Group]
    kept: list[Group] = field(default_factory=list)

    @property
    def rollouts(self) -> list[Rollout]:
        return [r for g in self.groups for r in g.rollouts]


@dataclass
class Pass:
    """One optimiser step: the rows in it, their streams (live ones too), the loss, and -d loss / d stream of what is live
    (logp_BT, value_BT, score_B). Streams have the shape of the whole batch; rows that are not in the pass are 0."""

    rows: Tensor
    batch: dict[str, Tensor]
    loss: float
    pull: dict[str, Tensor]
    heads: dict[str, Tensor] = field(default_factory=dict)  # head_VD, ref_head_VD where the loss reads distributions


@dataclass
class Update:
    """One call of Learner.update. before, after, reference: fingerprints of weights."""

    phase: str
    step: int
    role: str
    rows: list[Any]
    batch: dict[str, Tensor]
    before: str
    reference: str
    passes: list[Pass] = field(default_factory=list)
    after: str = ""
    optimiser_steps: int = 0


@dataclass
class Call:
    """One call of a reward, or of a judge."""

    phase: str
    step: int
    name: str
    args: tuple[Any, ...]
    found: Any


@dataclass
class Draw:
    """Answers drawn from a policy: the roles it has in the run, its weights, the prompts as it read them."""

    phase: str
    step: int
    roles: tuple[str, ...]
    weights: str
    prompts: list[str]
    texts: list[str]
    how: Any


@dataclass
class Ran:
    """One training loop: a method has one, a plan one for each phase."""

    name: str
    method: Method
    role: str
    steps: int
    loop: Loop


@dataclass
class Trace:
    functions: dict[str, Callable[..., Any]]
    steps: list[Step] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    samples: list[Draw] = field(default_factory=list)
    phases: list[Ran] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)  # of a plan: phases, work and copies by name, in order
    roles: dict[str, Any] = field(default_factory=dict)  # policies by role, as they were last seen
    summary: dict[str, Any] = field(default_factory=dict)
    now: tuple[str, int] = ("", -1)  # the phase and the step that run

    @property
    def groups(self) -> list[list[Group]]:
        """The groups of each step."""
        return [s.groups for s in self.steps]

    def of(self, role: str = "policy", phase: str = "") -> list[Update]:
        """The updates of a role, in a phase whose name begins so."""
        return [u for u in self.updates if u.role == role and u.phase.startswith(phase)]

    def roles_of(self, policy: Any) -> tuple[str, ...]:
        return tuple(name for name, p in self.roles.items() if p is policy)


def fingerprint(policy: Any) -> str:
    """Of the weights of its language model: critics and heads apart."""
    tensors = getattr(policy, "model", policy).state_dict()
    return hashlib.sha256(b"".join(tensors[k].detach().float().numpy().tobytes() for k in sorted(tensors))).hexdigest()[
        :12
    ]
