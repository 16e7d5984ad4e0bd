from __future__ import annotations

from dataclasses import replace
from typing import Any

from posttrain.core.registry import rollout
from posttrain.core.types import Group, Prompt
from posttrain.inference.sampling import Sampling
from posttrain.rollouts.sample import sample


@rollout(title="Sample and greedy (ReMax)", paper="arXiv:2310.10505", base="sample")
def sample_and_greedy(
    policy: Any, prompts: list[Prompt], how: Sampling, seed: int, step: int, n: int = 1
) -> list[Group]:  # fmt: skip
    """Sample and greedy (ReMax): n answers to each prompt, and one more that takes the likeliest token every time.

    The greedy one is the last of its group and says so (`info["greedy"]`); the filter `greedy_baseline` takes it out.
    """
    groups: list[Group] = sample(policy, prompts, how, seed, step, n=n)
    for group, (best,) in zip(
        groups, policy.sample(prompts, 1, replace(how, temperature=0.0), seed, step), strict=True
    ):
        group.rollouts.append(replace(best, index=n, info=best.info | {"greedy": True}))
    return groups
