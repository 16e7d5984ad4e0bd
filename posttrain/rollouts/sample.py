from __future__ import annotations

from typing import Any

from posttrain.core.registry import rollout
from posttrain.core.types import Group, Prompt
from posttrain.inference.sampling import Sampling


@rollout()
def sample(policy: Any, prompts: list[Prompt], how: Sampling, seed: int, step: int, n: int = 8) -> list[Group]:
    """Sample: n independent answers to each prompt from the policy as it is."""
    made = policy.sample(prompts, n, how, seed, step)
    return [Group(prompt, rollouts) for prompt, rollouts in zip(prompts, made, strict=True)]
