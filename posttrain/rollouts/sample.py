from __future__ import annotations

from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group


@rollout()
def sample(ask: RolloutRequest, n: int = 8) -> list[Group]:
    """Sample: n independent answers to each prompt from the policy as it is."""
    made = ask.policy.sample(ask.prompts, n, ask.sampling, ask.seed, ask.step)
    return [Group(prompt, rollouts) for prompt, rollouts in zip(ask.prompts, made, strict=True)]
