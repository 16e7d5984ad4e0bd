from __future__ import annotations

from dataclasses import replace

from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group
from posttrain.rollouts.sample import sample


@rollout(title="Sample and greedy (ReMax)", paper="arXiv:2310.10505", base="sample")
def sample_and_greedy(ask: RolloutRequest, n: int = 1
) -> list[Group]:  # fmt: skip
    """Sample and greedy (ReMax): n answers to each prompt, and one more that takes the likeliest token every time.

    The greedy one is the last of its group and says so (`info["greedy"]`); the filter `greedy_baseline` takes it out.
    """
    groups: list[Group] = sample(ask, n=n)
    greedy = sample(ask.but(sampling=replace(ask.sampling, temperature=0.0)), n=1)
    for group, (best,) in zip(groups, (g.rollouts for g in greedy), strict=True):
        group.rollouts.append(replace(best, index=n, info=best.info | {"greedy": True}))
    return groups
