"""Which answers a filter may judge or choose."""

from __future__ import annotations

from posttrain.core.types import Group, Rollout


def eligible(group: Group) -> list[Rollout]:
    """Scored, and with at least one action in the mask: an answer that `overlong` silenced teaches nothing."""
    return [r for r in group.scored if bool(r.mask_T.any())]


def place(group: Group, rollout: Rollout) -> int:
    """Where in its group a rollout stands."""
    return next(i for i, r in enumerate(group.rollouts) if r is rollout)


def reward_of(rollout: Rollout) -> float:
    """The reward of a rollout that is known to be scored, to rank by."""
    assert rollout.reward is not None
    return rollout.total
