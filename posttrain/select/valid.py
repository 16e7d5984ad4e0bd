"""The rollouts of a group that a selection may judge or choose."""

from __future__ import annotations

from posttrain.core.types import Group, Rollout


def valid_rollouts(group: Group) -> list[Rollout]:
    """Those with a score and at least one action in the mask; `overlong` masks all actions of an answer that is too long."""
    return [r for r in group.scored if bool(r.mask_T.any())]


def place(group: Group, rollout: Rollout) -> int:
    """The position of a rollout in its group."""
    return next(i for i, r in enumerate(group.rollouts) if r is rollout)


def reward_of(rollout: Rollout) -> float:
    """The reward of a rollout that is known to be scored, to rank by."""
    assert rollout.reward is not None
    return rollout.total
