from __future__ import annotations

from dataclasses import replace

from posttrain.core.registry import select
from posttrain.core.types import Group, Rollout
from posttrain.select.eligible import reward_of


@select(title="Greedy baseline (ReMax)", paper="arXiv:2310.10505")
def greedy_baseline(groups: list[Group]) -> list[Group]:
    """Greedy baseline (ReMax): what the likeliest answer earned is taken off the reward of the others; it leaves.

    R_i <- R_i - R_greedy;  failed answers stay failed;  a group without a greedy answer that could be scored goes
    """
    out = []
    for group in groups:
        bars = [reward_of(r) for r in group.scored if r.info.get("greedy")]
        if bars:
            kept = group.only([i for i, r in enumerate(group.rollouts) if not r.info.get("greedy")])
            out.append(replace(kept, rollouts=[_above(r, bars[0]) for r in kept.rollouts]))
    return out


def _above(rollout: Rollout, bar: float) -> Rollout:
    """What its turns earned stays with them; nan - bar is nan: still failed."""
    return rollout if rollout.reward is None else replace(rollout, reward=rollout.reward - bar)
