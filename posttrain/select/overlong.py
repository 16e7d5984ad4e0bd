from __future__ import annotations

from dataclasses import replace

import torch

from posttrain.core.errors import unknown
from posttrain.core.registry import select
from posttrain.core.types import Group, Rollout


@select(paper="arXiv:2503.14476")
def overlong(groups: list[Group], how: str = "mask") -> list[Group]:
    """Overlong filtering (DAPO): an answer cut off by the length limit was not finished, so it is not judged.

    how="mask": its tokens leave the loss (and, as a row that is not live, its group's statistics);
    how="drop": it leaves its group, and a group left empty goes.
    """
    if how not in ("mask", "drop"):
        raise unknown("way to treat overlong answers", how, ("mask", "drop"))
    kept = [replace(g, rollouts=[_silent(r) for r in g.rollouts if not r.truncated or how == "mask"]) for g in groups]
    return [group for group in kept if group.rollouts]


def _silent(rollout: Rollout) -> Rollout:
    return (
        rollout.but_turn(mask_T=torch.zeros_like(rollout.turns[-1].mask_T), streams_T=rollout.turns[-1].streams_T)
        if rollout.truncated
        else rollout
    )
