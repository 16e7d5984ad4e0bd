from __future__ import annotations

from dataclasses import replace

from posttrain.core.registry import select
from posttrain.core.types import Group, Rollout
from posttrain.select.eligible import eligible, place, reward_of


@select(title="One of each (OREAL)", paper="arXiv:2502.06781", system="oreal")
def one_of_each(groups: list[Group], bar: float | None = None) -> list[Group]:
    """One of each (OREAL): of each group one right answer (R > bar) and one wrong, so that a model of outcomes sees as many
    of both; a group without either goes.

    bar: midway between the group's best and worst unless given, which is 0.5 where answers are right (1) or wrong (0)
    They keep what their whole group said of them as the component `leave_one_out`: R_i - mean of the others' R
    """
    kept = []
    for group in groups:
        scored = eligible(group)
        rewards = [reward_of(r) for r in scored] or [0.0]
        middle = (max(rewards) + min(rewards)) / 2 if bar is None else bar
        sides = [[r for r in scored if (reward_of(r) > middle) == right] for right in (True, False)]
        if all(sides):
            two = group.only([place(group, side[0]) for side in sides])
            kept.append(replace(two, rollouts=[_told(r, scored) for r in two.rollouts]))
    return kept


def _told(rollout: Rollout, scored: list[Rollout]) -> Rollout:
    """The same answer with its reward above the mean of the others'."""
    others = [reward_of(r) for r in scored if r is not rollout]
    return replace(rollout, rewards=rollout.rewards | {"leave_one_out": reward_of(rollout) - sum(others) / len(others)})
