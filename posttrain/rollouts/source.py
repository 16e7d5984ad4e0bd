"""Where the loop's rollouts come from. Synchronous today; the loop asks for a step's groups and reads their version."""

from __future__ import annotations

from typing import Any, Protocol

from posttrain.core.registry import Part
from posttrain.core.types import Group, Prompt
from posttrain.inference.sampling import Sampling


class Source(Protocol):
    """Asked for with prompts, answers with groups whose rollouts carry the version of the weights that made them."""

    def groups(self, prompts: list[Prompt], step: int) -> list[Group]: ...


class Synchronous:
    """Made here and now by the policy being trained, so every rollout's version is the present step."""

    def __init__(self, policy: Any, rollout: Part, how: Sampling, seed: int) -> None:
        self.policy, self.rollout, self.how, self.seed = policy, rollout, how, seed

    def groups(self, prompts: list[Prompt], step: int) -> list[Group]:
        return self.rollout(self.policy, prompts, self.how, self.seed, step)
